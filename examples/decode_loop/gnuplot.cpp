#include "gnuplot.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace example {

void check_picture(const std::string& option, const std::string& path) {
  if (!path.ends_with(".svg") && !path.ends_with(".png"))
    throw std::invalid_argument(option + " " + path + " ends in neither .svg nor .png");
  if (std::system("command -v gnuplot > /dev/null 2>&1") != 0)
    throw std::runtime_error(option + " needs gnuplot, which is not installed");
  if (!std::ofstream(path, std::ios::app)) throw std::runtime_error("cannot write " + path);
}

std::string quoted(const std::string& text) {
  std::string q = "'";
  for (const char c : text) q += c == '\'' ? "''" : std::string(1, c);
  return q + "'";
}

void write_terminal(std::ostream& out, const std::string& path) {
  const char* terminal =
      path.ends_with(".png") ? "pngcairo font 'Sans,9'" : "svg dynamic background rgb 'white' font 'sans-serif,12'";
  out << "set terminal " << terminal << " size " << picture_width << ',' << picture_height << "\nset output "
      << quoted(path)
      << "\nset grid lc rgb '#e4e4e4' lt 1 lw 1\nset border 3 lc rgb '#555555'\nset tics nomirror scale 0.5\n";
}

void draw(const std::string& path, const std::string& commands) {
  std::FILE* gnuplot = ::popen("gnuplot", "w");
  if (gnuplot == nullptr) throw std::runtime_error("cannot start gnuplot");
  const bool written = std::fwrite(commands.data(), 1, commands.size(), gnuplot) == commands.size();
  if (::pclose(gnuplot) != 0 || !written) throw std::runtime_error("gnuplot could not draw " + path);
}

}  // namespace example
