#include "plot.hpp"

#include "../decode_loop/gnuplot.hpp"
#include "engine.hpp"
#include "eviction_names.hpp"

#include <sstream>

namespace example {

void plot_hit_rates(const trace& t, const std::string& path) {
  const outcome unbounded = replay_prompts(t, "lru", -1);
  const std::int64_t distinct = unbounded.blocks_asked - unbounded.blocks_hit;
  std::ostringstream out;
  write_terminal(out, path);
  out << "set title 'What is found of prompts by how much is kept: blocks of 512 tokens, one request at a time'\n"
         "set xlabel 'capacity, blocks'\nset ylabel 'blocks found, %'\nset logscale x 2\nset format x '%.0f'\n"
         "set yrange [0:]\nset key top left\n";
  for (const char* name : eviction_names) {
    out << '$' << name << " << EOD\n";
    for (int halvings = 8; halvings >= 0; --halvings) {
      const std::int64_t capacity = distinct >> halvings;
      if (capacity > 0) out << capacity << ' ' << 100 * replay_prompts(t, name, capacity).block_hit_rate() << '\n';
    }
    out << "EOD\n";
  }
  out << "plot " << 100 * unbounded.block_hit_rate() << " title 'unbounded' lc rgb '#888888' dt 2";
  double width = 6;  // lines that lie on each other are seen all the same
  for (const char* name : eviction_names) {
    out << ", $" << name << " using 1:2 with linespoints lw " << width << " pt 7 ps " << width / 5 << " title "
        << quoted(name) << " noenhanced";
    width /= 1.6;
  }
  out << '\n';
  draw(path, out.str());
}

}  // namespace example
