#pragma once

#include "../decode/entry.cuh"

namespace bench {

/// NOTE: a file each, so that they compile beside each other.
void add_prefill_16_bit(decode_entries& to);
void add_prefill_codes(decode_entries& to);
void add_prefill_dims(decode_entries& to);

}  // namespace bench
