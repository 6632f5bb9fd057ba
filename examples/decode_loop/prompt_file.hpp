#pragma once

#include "gguf.hpp"
#include "session.hpp"
#include "transformer.hpp"

#include <kvilt/core/executor.hpp>

#include <string>
#include <vector>

namespace example {

// Names a model's weights, and how they are computed with: what K and V of a text depend on.
std::string model_label(const gguf_file& file, arithmetic how);

// Writes what a cache has of a prompt, under its tokens.
void save_prompt(const kvilt::host& exec, const session& cache, const std::string& path, const std::string& model,
                 const std::vector<int>& prompt);

// Has a cache begin with as much of a prompt as is in the file, all but its last token at most. Returns how many tokens.
// Throws kvilt::error for a file that is none for this cache, model and policy, or whose text goes on otherwise where the
// cache cannot be cut back to what is common to both.
kvilt::idx load_prompt(const kvilt::host& exec, session& cache, const kvilt::sequence_file<>& file,
                       const std::string& model, const std::vector<int>& prompt);

}  // namespace example
