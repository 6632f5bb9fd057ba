#pragma once

/// \file
/// Everything: what kvilt.hpp has, and the same verbs on a GPU. Needs nvcc.

#include <kvilt/attention/attend.cuh>
#include <kvilt/attention/block_attention.cuh>
#include <kvilt/attention/column_mass.cuh>
#include <kvilt/cache/append.cuh>
#include <kvilt/cache/device_cache.cuh>
#include <kvilt/cache/plan.cuh>
#include <kvilt/gpu/gpu.cuh>
#include <kvilt/gpu/memory.hpp>
#include <kvilt/kvilt.hpp>
