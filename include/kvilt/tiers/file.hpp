#pragma once

#include <kvilt/core/error.hpp>
#include <kvilt/core/types.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace kvilt::inline KVILT_ABI::detail {

/// The system's words for an errno.
inline std::string reason(int error) {
  return std::generic_category().message(error);
}
[[noreturn]] inline void refuse_file(const std::string& path, const char* what, int error) {
  refuse<file_error, std::string, const char*, std::string>(path + ": ", what, reason(error));
}

/// An open file of POSIX, closed at its end. Reads and writes name their place, so several threads may make them; they
/// go on after interruptions, and where the system moved fewer bytes than it was asked to.
class file {
 public:
  file() = default;
  /// `open(2)`; whether it succeeded is said by `error()`.
  file(const char* path, int flags, mode_t mode = 0) {
    do descriptor_ = ::open(path, flags | O_CLOEXEC, mode);
    while (descriptor_ < 0 && errno == EINTR);
    error_ = descriptor_ < 0 ? errno : 0;
  }
  file(file&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), error_(std::exchange(other.error_, EBADF)) {}
  file& operator=(file other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(error_, other.error_);
    return *this;
  }
  ~file() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  /// 0, or the errno of opening it.
  int error() const { return error_; }
  int descriptor() const { return descriptor_; }

  /// Neither a folder nor a pipe, nor anything else that has no bytes of its own.
  bool regular() const {
    struct stat is;
    return ::fstat(descriptor_, &is) == 0 && S_ISREG(is.st_mode);
  }
  /// Bytes, or -errno. Throws nothing, as all below.
  idx size() const {
    struct stat is;
    return ::fstat(descriptor_, &is) == 0 ? idx(is.st_size) : -idx(errno);
  }
  /// Reads up to `count` bytes from `offset` on. Returns how many: fewer where the file ends; or -errno.
  idx read(unsigned char* to, idx count, idx offset) const {
    idx done = 0;
    while (done < count) {
      const ssize_t n = ::pread(descriptor_, to + done, std::size_t(count - done), off_t(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return -idx(errno);
      if (n == 0) break;
      done += idx(n);
    }
    return done;
  }
  /// Writes all of `count` bytes. Returns 0 or an errno.
  int write(const unsigned char* from, idx count, idx offset) const {
    for (idx done = 0; done < count;) {
      const ssize_t n = ::pwrite(descriptor_, from + done, std::size_t(count - done), off_t(offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno;
      if (n == 0) return EIO;
      done += idx(n);
    }
    return 0;
  }
  /// What was written is on the medium. Returns 0 or an errno.
  int sync() const { return ::fsync(descriptor_) == 0 ? 0 : errno; }

 private:
  int descriptor_ = -1;
  int error_ = EBADF;
};

/// A file that is to take another one's place, at once and as a whole: written as `<path>.part` beside it, and renamed
/// when it is complete. Whoever reads `path`, at whatever moment the writer or the machine ends, finds the old file or
/// the new one. What is left of a writer that was killed is written over by the next. Throws `file_error`.
class replacement {
 public:
  explicit replacement(const std::string& path) : path_(path), part_(path + ".part") {
    // NOTE: whoever had it before may have renamed it while this one waited for a lock: then it is another's file.
    do {
      file_ = file(part_.c_str(), O_RDWR | O_CREAT, 0666);
      if (file_.error()) refuse_file(part_, "cannot be written: ", file_.error());
      if (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) != 0)
        refuse_file(part_, "is being written by somebody else: ", errno);
    } while (!named());
    if (::ftruncate(file_.descriptor(), 0) != 0) refuse_file(part_, "cannot be written: ", errno);
  }
  replacement(const replacement&) = delete;
  replacement& operator=(const replacement&) = delete;
  ~replacement() {
    if (!done_ && file_.error() == 0) ::unlink(part_.c_str());
  }

  const file& to() const { return file_; }
  const std::string& part() const { return part_; }

  /// `durable`: it survives the machine's end too, not only the program's.
  void take_place(bool durable) {
    if (durable)
      if (const int e = file_.sync()) refuse_file(part_, "cannot be written: ", e);
    if (::rename(part_.c_str(), path_.c_str()) != 0) refuse_file(path_, "cannot be replaced: ", errno);
    done_ = true;
    if (!durable) return;
    // NOTE: the new name is the folder's, which is written by itself.
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const file names(folder.c_str(), O_RDONLY | O_DIRECTORY);
    const int e = names.error() ? names.error() : names.sync();
    if (e && e != EINVAL) refuse_file(folder, "cannot be written: ", e);
  }

 private:
  bool named() const {
    struct stat open, there;
    return ::fstat(file_.descriptor(), &open) == 0 && ::stat(part_.c_str(), &there) == 0 &&
           open.st_dev == there.st_dev && open.st_ino == there.st_ino;
  }

  std::string path_, part_;
  file file_;
  bool done_ = false;
};

}  // namespace kvilt::inline KVILT_ABI::detail
