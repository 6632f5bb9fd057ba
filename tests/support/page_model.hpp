#pragma once

#include "support/subject.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace support {

// Which pages the sequences of an owner should have, from the words of the contract alone. Without a table a sequence has
// one page as long as it is open. Verbs say whether there is room, and change nothing if not.
class page_model {
 public:
  explicit page_model(const subject& owner) : owner_(&owner) {}

  idx used() const {
    if (!owner_->paged) return idx(sheets_.size());
    std::set<int> all;
    for (const auto& [tag, s] : sheets_) all.insert(s.pages.begin(), s.pages.end());
    all.erase(-1);
    return idx(all.size());
  }
  idx free() const { return owner_->bytes().body_pages - used(); }
  bool empty() const { return sheets_.empty(); }
  std::vector<int> tags() const {
    std::vector<int> all;
    for (const auto& [tag, s] : sheets_) all.push_back(tag);
    return all;
  }

  void open(int tag) { sheets_[tag] = {}; }
  void close(int tag) { sheets_.erase(tag); }
  bool reserve(int tag, idx tokens) {
    sheet& s = sheets_.at(tag);
    const std::size_t last = std::size_t(pages(rows(s.length + tokens))), next = std::size_t(goes_on_at(s));
    const bool replaced = tokens > 0 && next < s.pages.size() && others_have(s.pages[next]);
    if (owner_->paged && idx(std::max(last, s.pages.size()) - s.pages.size()) + replaced > free()) return false;
    if (replaced) s.pages[next] = fresh();
    while (s.pages.size() < last) s.pages.push_back(fresh());
    return true;
  }
  void truncate(int tag, idx length) {
    sheet& s = sheets_.at(tag);
    s.length = length;
    s.left_tail = std::min(s.left_tail, length);
    const std::size_t kept = std::size_t(std::max(pages(rows(length)), pages(written(s))));
    if (s.pages.size() > kept) s.pages.resize(kept);
  }
  // Pages of tokens that no later query sees, and of nothing else; nothing where nothing is accepted.
  void commit(int tag, idx length) {
    sheet& s = sheets_.at(tag);
    if (length == s.length) return;
    if (owner_->tail) s.left_tail = std::max(s.left_tail, s.length + 1 - owner_->tail);
    s.length = length;
    if (owner_->width == 0) return;
    const idx first_row_after_sinks = owner_->exact_sinks ? 0 : owner_->sinks;
    for (std::size_t page = 0; page < s.pages.size(); ++page) {
      const idx first = idx(page) * owner_->page_rows(), last = first + owner_->page_rows() - 1;
      const idx last_position = last - first_row_after_sinks + owner_->sinks;
      if (first >= first_row_after_sinks && last_position <= length - owner_->width) s.pages[page] = -1;
    }
  }
  bool fork(int tag, int child) {
    const sheet copy = forked(sheets_.at(tag));
    sheets_[child] = copy;
    if (!owner_->paged || free() >= 0) return true;
    sheets_.erase(child);
    return false;
  }
  bool reorder(const std::vector<int>& tags, const std::vector<int>& parents) {
    const std::map<int, sheet> before = sheets_;
    // One child of each parent has its pages, the others are its forks.
    for (const int tag : tags) sheets_.erase(tag);
    std::vector<bool> kept(tags.size(), false);
    for (const bool forks : {false, true})
      for (std::size_t i = 0; i < tags.size(); ++i) {
        const std::size_t parent = std::size_t(parents[i]);
        const sheet& of = before.at(tags[parent]);
        if (forks && sheets_.count(tags[i]) == 0) sheets_[tags[i]] = forked(of);
        if (!forks && !kept[parent]) sheets_[tags[i]] = of, kept[parent] = true;
      }
    if (!owner_->paged || free() >= 0) return true;
    sheets_ = before;
    return false;
  }

 private:
  struct sheet {
    std::vector<int> pages;  // numbers; -1: given back
    idx length = 0;
    idx left_tail = 0;  // tokens below are in the body
  };

  int fresh() { return next_++; }
  bool others_have(int page) const {
    return page >= 0 && std::count_if(sheets_.begin(), sheets_.end(),
                                      [&](const auto& s) { return std::ranges::count(s.second.pages, page) > 0; }) > 1;
  }
  // Pages that are written no more, and those that others have too, belong to both.
  sheet forked(const sheet& of) {
    sheet copy = of;
    for (std::size_t i = std::size_t(goes_on_at(of)); i < of.pages.size(); ++i)
      if (of.pages[i] >= 0 && !others_have(of.pages[i])) copy.pages[i] = fresh();
    return copy;
  }

  // Tokens of the body when there are `length`: all but 16-bit sinks and those that are still in the tail.
  idx rows(idx length) const {
    idx count = 0;
    for (idx p = owner_->exact_sinks; p < length; ++p)
      count += p < owner_->sinks || p + owner_->tail <= length || !owner_->tail;
    return count;
  }
  // Those that are there.
  idx written(const sheet& s) const {
    idx count = 0;
    for (idx p = owner_->exact_sinks; p < s.length; ++p) count += p < owner_->sinks || p < s.left_tail || !owner_->tail;
    return count;
  }
  idx goes_on_at(const sheet& s) const { return owner_->paged ? written(s) / owner_->page_rows() : 0; }
  idx pages(idx rows) const { return owner_->paged ? (rows + owner_->page_rows() - 1) / owner_->page_rows() : 0; }

  const subject* owner_;
  std::map<int, sheet> sheets_;
  int next_ = 0;
};

}  // namespace support
