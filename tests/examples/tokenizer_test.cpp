#include "tokenizer.hpp"

#include "pre_tokenizer.hpp"
#include "support/catch.hpp"
#include "support/tiny_gguf.hpp"

#include <filesystem>
#include <random>
#include <string>
#include <vector>

namespace {

using pieces = std::vector<std::string_view>;

// A tokenizer and the file that its strings lie in.
struct loaded {
  explicit loaded(const support::gguf_builder& builder, const std::string& name = "tokenizer.gguf")
      : path(support::temporary_path(name)), file((builder.write(path), path)), tokenizer(file) {
    std::filesystem::remove(path);  // the mapping stays
  }

  std::string path;
  example::gguf_file file;
  example::tokenizer tokenizer;

  pieces spellings(std::string_view text, example::encode_options options = {}) const {
    const auto all = file.metadata<std::vector<std::string_view>>("tokenizer.ggml.tokens");
    pieces out;
    for (const int token : tokenizer.encode(text, options)) out.push_back(all[static_cast<std::size_t>(token)]);
    return out;
  }
};

loaded byte_level(const std::string& pre_tokenizer = "gpt-2") {
  support::tiny_gguf_options options;
  options.pre_tokenizer = pre_tokenizer;
  return loaded(support::tiny_gguf(options));
}

loaded sentence_piece() {
  support::tiny_gguf_options options;
  options.sentence_piece = true;
  return loaded(support::tiny_gguf(options));
}

std::string random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::string bytes(size, '\0');
  for (char& c : bytes)
    c = static_cast<char>(engine() % 3 == 0 ? engine() : " the andhello'1\n\xc3\xa9"[engine() % 19]);
  return bytes;
}

pieces split(const std::string& rules, std::string_view text) {
  return example::pre_tokenizer(rules).split(text);
}

}  // namespace

TEST_CASE("tokenizer: any bytes survive the way to tokens and back", "[examples]") {
  for (const loaded& model : {byte_level(), byte_level("llama-bpe"), byte_level("default"), sentence_piece()}) {
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
      const std::string text = random_bytes(seed, seed);
      const auto tokens = model.tokenizer.encode(text);
      CHECK(model.tokenizer.decode(tokens) == text);
    }
    CHECK(model.tokenizer.encode("").empty());
  }
}

TEST_CASE("tokenizer: byte pairs merge by rank, not by length", "[examples]") {
  const loaded model = byte_level();
  CHECK(model.spellings("the") == pieces{"the"});
  CHECK(model.spellings(" the hello") == pieces{"\xc4\xa0the", "\xc4\xa0", "hello"});
  CHECK(model.spellings("there") == pieces{"the", "re"});
  CHECK(model.spellings("then") == pieces{"the", "n"});    // t + he outranks t + h
  CHECK(model.spellings("outer") == pieces{"out", "er"});  // o + u first
  CHECK(model.spellings("ander") == pieces{"and", "er"});
  CHECK(model.spellings("llll") == pieces{"ll", "ll"});  // the leftmost of equals
  CHECK(model.spellings("lll") == pieces{"ll", "l"});
  CHECK(model.spellings("it's") == pieces{"i", "t", "'s"});
}

TEST_CASE("tokenizer: a long word takes no quadratic time", "[examples]") {
  const loaded model = byte_level();
  const std::string word(400000, 'l');
  CHECK(model.tokenizer.encode(word).size() == word.size() / 2);
  const loaded other = sentence_piece();
  CHECK(other.tokenizer.encode(word).size() == word.size() / 2 + 1);
}

TEST_CASE("tokenizer: sentence pieces merge by score", "[examples]") {
  const loaded model = sentence_piece();
  const std::string_view space = "\xe2\x96\x81";
  CHECK(model.spellings("the") == pieces{"\xe2\x96\x81the"});
  CHECK(model.spellings("hello the") == pieces{"\xe2\x96\x81hello", "\xe2\x96\x81the"});
  CHECK(model.spellings("then") == pieces{"\xe2\x96\x81the", "n"});  // h + e outscores e + n
  CHECK(model.spellings("Q") == pieces{space, "<0x51>"});
  CHECK(model.spellings("\xc3\xa9") == pieces{space, "<0xC3>", "<0xA9>"});
  CHECK(model.spellings("<0x51>").size() > 2);  // text that looks like a byte token is text
  CHECK(model.spellings("a</s>b", {true, true}) == pieces{"<s>", space, "a", "</s>", space, "b"});
  CHECK(model.tokenizer.decode(model.tokenizer.encode("a</s>b", {true, true})) == "ab");
  CHECK(model.tokenizer.adds_bos());
}

TEST_CASE("tokenizer: special tokens are parsed when wanted", "[examples]") {
  const loaded model = byte_level();
  const auto& tokenizer = model.tokenizer;
  CHECK(tokenizer.encode("<|im_start|>the<|im_end|>", {false, true}) ==
        std::vector<int>{1, tokenizer.encode("the")[0], 2});
  CHECK(tokenizer.encode("<|im_start|>").size() > 1);
  CHECK(tokenizer.decode(tokenizer.encode("<|im_start|>")) == "<|im_start|>");
  CHECK(tokenizer.encode("the", {true, false}).front() == 0);
  CHECK(tokenizer.decode(1).empty());
  CHECK(tokenizer.special("<|im_end|>") == 2);
  CHECK_FALSE(tokenizer.special("the"));
  CHECK(tokenizer.bos() == 0);
  CHECK(tokenizer.eos() == 0);
  CHECK(tokenizer.eot() == 2);
  CHECK(tokenizer.ends(2));
  CHECK_FALSE(tokenizer.ends(1));
  CHECK_FALSE(tokenizer.adds_bos());
}

TEST_CASE("tokenizer: one token at a time gives the bytes of the whole", "[examples]") {
  const loaded model = byte_level();
  std::string streamed;
  for (const int token : model.tokenizer.encode("caf\xc3\xa9 \xf0\x9f\x98\x80"))
    streamed += model.tokenizer.decode(token);
  CHECK(streamed == "caf\xc3\xa9 \xf0\x9f\x98\x80");
}

TEST_CASE("tokenizer: what it cannot use is named", "[examples]") {
  const auto error_of = [](const support::gguf_builder& file) {
    try {
      loaded model(file);
    } catch (const example::model_error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  support::gguf_builder bare;
  CHECK_THAT(error_of(bare), support::containing("no metadata 'tokenizer.ggml.tokens'"));
  bare.texts("tokenizer.ggml.tokens", {"a", "b"}).text("tokenizer.ggml.model", "bert");
  CHECK_THAT(error_of(bare), support::containing("tokenizer 'bert' is not supported; supported: gpt2"));
  support::gguf_builder merges;
  merges.texts("tokenizer.ggml.tokens", {"a", "b"}).text("tokenizer.ggml.model", "gpt2");
  merges.texts("tokenizer.ggml.merges", {"a b"});
  CHECK_THAT(error_of(merges), support::containing("merge 'a b' has a part that is not in the vocabulary"));
  support::gguf_builder types;
  types.texts("tokenizer.ggml.tokens", {"a"}).i32s("tokenizer.ggml.token_type", {1, 1});
  CHECK_THAT(error_of(types), support::containing("has 2 entries; expected 1"));
  support::gguf_builder scores;
  scores.texts("tokenizer.ggml.tokens", {"a"}).text("tokenizer.ggml.model", "llama").f32s("tokenizer.ggml.scores", {});
  CHECK_THAT(error_of(scores), support::containing("tokenizer.ggml.scores has 0 entries; expected 1"));
  support::gguf_builder bos;
  bos.texts("tokenizer.ggml.tokens", {"a"}).text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.merges", {});
  const loaded lone(bos);
  CHECK_THROWS_WITH(lone.tokenizer.encode("b"), support::containing("no token for byte 98"));
  CHECK_THROWS_WITH(lone.tokenizer.decode(1), support::containing("token 1 is outside the vocabulary of 1"));
  bos.u32("tokenizer.ggml.bos_token_id", 1);
  CHECK_THAT(error_of(bos), support::containing("is 1; expected a token below 1"));
  CHECK_THROWS_WITH(example::pre_tokenizer("tekken"),
                    support::containing("pre-tokenizer 'tekken' is not supported; supported: default, gpt-2"));
}

TEST_CASE("tokenizer: pre-tokenizers cut where their models do", "[examples]") {
  CHECK(split("gpt-2", "It's 1234  cats!\n\nYes") == pieces{"It", "'s", " 1234", " ", " cats", "!", "\n", "\n", "Yes"});
  CHECK(split("smollm", "a 1234 b") == pieces{"a", " ", "1", "2", "3", "4", " b"});
  CHECK(split("llama-bpe", "IT'S 12345\n\n x") == pieces{"IT", "'S", " ", "123", "45", "\n\n", " x"});
  CHECK(split("qwen2", "v12\r\n!") == pieces{"v", "1", "2", "\r\n", "!"});
  CHECK(split("default", "a12345, b") == pieces{"a", "123", "45", ",", " b"});
  CHECK(split("gpt-2", "\xc3\xa9t\xc3\xa9\xe2\x82\xac") == pieces{"\xc3\xa9t\xc3\xa9", "\xe2\x82\xac"});
  CHECK(split("smollm", "\xd9\xa3\xe2\x85\xa7") == pieces{"\xd9\xa3", "\xe2\x85\xa7"});  // other scripts' numbers
  CHECK(split("gpt-2",
              "ab\xff\xfe"
              "cd") == pieces{"ab", "\xff", "\xfe", "cd"});  // no UTF-8
  CHECK(split("gpt-2", "").empty());
}

TEST_CASE("tokenizer: what only resembles UTF-8 is cut into bytes", "[examples]") {
  // Overlong, a surrogate, beyond the last code point, cut short, a stray continuation.
  for (const std::string_view bytes : {"\xc0\xaf", "\xe0\x80\x80", "\xf0\x80\x80\x80", "\xed\xa0\x80",
                                       "\xf4\x90\x80\x80", "\xe2\x96", "\xf0\x9f\x98", "\x80"}) {
    CHECK(split("gpt-2", bytes).size() == bytes.size());
  }
  for (const std::string_view character :
       {"\xc2\x80", "\xe0\xa0\x80", "\xf0\x90\x80\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    CHECK(split("gpt-2", character) == pieces{character});
  }
}
