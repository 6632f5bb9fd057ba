// Two kernels that need local memory: too many numbers for the registers they may have, and an array that is indexed.
__global__ void crowded_kernel(const float* from, float* to) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = from[64 * threadIdx.x + i];
  __syncthreads();
  for (int i = 0; i < 64; ++i) to[64 * threadIdx.x + i] = x[i] * x[63 - i];
}

__global__ void indexed_kernel(const int* at, float* to) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = to[i];
  for (int i = 0; i < 64; ++i) x[at[i]] += 1;
  to[threadIdx.x] = x[at[threadIdx.x]];
}
