// Each of these functions lives in a source that includes every header: this program links or it does not.
int first();
int second();
#ifdef WITH_CUDA
int third();
int fourth();
#endif

int main() {
#ifdef WITH_CUDA
  return first() + second() + third() + fourth();
#else
  return first() + second();
#endif
}
