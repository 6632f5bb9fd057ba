#include "plot.hpp"

#include "../decode_loop/gnuplot.hpp"
#include "engine.hpp"
#include "eviction_names.hpp"

#include <algorithm>
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

void plot_tiers(const outcome& o, const std::string& path) {
  std::int64_t from_tiers = 0;
  for (const outcome::tier& t : o.tiers) from_tiers += t.tokens;
  std::ostringstream out;
  write_terminal(out, path);
  out << "set title 'Where tokens of prompts come from'\nset ylabel 'of all, %'\nset yrange [0:100]\n"
         "set style data histograms\nset style histogram rowstacked\nset style fill solid 0.8 border -1\n"
         "set boxwidth 0.5\nset key outside right\nset xtics ('' 0)\n$shares << EOD\n";
  const auto percent = [&](std::int64_t tokens) {
    return o.tokens_asked > 0 ? 100 * double(tokens) / double(o.tokens_asked) : 0;
  };
  out << percent(std::max<std::int64_t>(o.tokens_hit - from_tiers, 0));
  for (const outcome::tier& t : o.tiers) out << ' ' << percent(t.tokens);
  out << ' ' << percent(o.tokens_asked - std::max(o.tokens_hit, from_tiers))
      << "\nEOD\nplot $shares using 1 title 'pool'";
  for (std::size_t i = 0; i < o.tiers.size(); ++i)
    out << ", '' using " << i + 2 << " title " << quoted(o.tiers[i].name);
  out << ", '' using " << o.tiers.size() + 2 << " title 'computed' lc rgb '#bbbbbb'\n";
  draw(path, out.str());
}

}  // namespace example
