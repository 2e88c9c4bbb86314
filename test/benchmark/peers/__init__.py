"""The benchmark against what users would pick instead: see ``peers.sh``."""
