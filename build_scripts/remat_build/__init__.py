"""What the commands in ``build_scripts/`` and the checks in ``ci/`` share."""
