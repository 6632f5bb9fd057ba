#include <kvilt/kvilt.hpp>

#include <iostream>

int main() {
  std::cout << "kvilt " << KVILT_VERSION_MAJOR << '.' << KVILT_VERSION_MINOR << '.' << KVILT_VERSION_PATCH << '\n';
}
