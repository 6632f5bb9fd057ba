#pragma once

#include <kvilt/pages/token_hash.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace example {

inline constexpr std::int64_t block_tokens = 512;

// Texts are not in a trace, only what of them is equal: pieces of one name have the same tokens.
struct piece {
  std::uint64_t name;
  std::int64_t tokens;
};

struct request {
  double arrival = 0;  // seconds
  std::int64_t input = 0;
  std::int64_t output = 0;
  int priority = 0;                   // 0 to 7
  std::vector<piece> prompt;          // `input` tokens in all
  std::vector<std::uint32_t> blocks;  // names of 512 tokens each, the last may have fewer
  std::uint64_t answer = 0;           // name of the piece that the model says

  std::int64_t rows() const { return input + (output > 1 ? output - 1 : 0); }  // the last token said is never read
};

// In the order of arrival.
using trace = std::vector<request>;

// JSONL as Mooncake's authors publish it (R. Qin et al. 2024): timestamp in ms, input_length, output_length, hash_ids;
// here also priority. Throws std::invalid_argument, and names the line.
trace read_trace(const std::string& path);

// "chat:N" or "chat:N:SEED": N turns of conversations that begin one a second, each with one of 8 system prompts of 256
// tokens. A turn adds 100 tokens asked and 200 said in the mean (log-normal, sigma 1); three of four are followed by
// another, 30 s later in the mean, which has all before it as its prompt. Throws std::invalid_argument.
trace generated_trace(const std::string& what);

kvilt::token_id token_of(std::uint64_t piece_name, std::int64_t at);
// Replaces `text` by the prompt and the first `said` tokens of the answer.
void write_text(const request& r, std::int64_t said, std::vector<kvilt::token_id>& text);

}  // namespace example
