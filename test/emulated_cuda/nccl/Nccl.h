#pragma once

// nccl.h includes CUDA's headers of half precision, which need others that are
// not there, only to know whether bfloat16 exists.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_BF16_TYPES_EXIST__
#include <nccl.h>
