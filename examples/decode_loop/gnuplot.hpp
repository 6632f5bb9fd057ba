#pragma once

#include <ostream>
#include <string>

namespace example {

inline constexpr int picture_width = 960, picture_height = 600;  // pixels

// Throws where `option` could not draw this file: gnuplot is missing, the name ends in neither .svg nor .png, or the
// file cannot be written.
void check_picture(const std::string& option, const std::string& path);

// As gnuplot reads it.
std::string quoted(const std::string& text);

// The commands that every picture begins with: its size, its file, its grid.
void write_terminal(std::ostream& out, const std::string& path);

void draw(const std::string& path, const std::string& commands);

}  // namespace example
