// tunefarm.h for C++: a model that frees itself, and errors as exceptions.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tunefarm.h"

namespace tunefarm_runtime {

class Error : public std::runtime_error {
 public:
  explicit Error(const tunefarm_status& status) : std::runtime_error(status.message), code(status.code) {}
  int code;
};

class Model {
 public:
  /// Load a bundle's folder. `threads` is 0 for the number that the model was tuned for. Throws Error.
  explicit Model(const std::string& folder, int threads = 0) { check(tunefarm_load(folder.c_str(), threads, &model_)); }
  ~Model() { tunefarm_free(model_); }
  Model(Model&& other) noexcept : model_(std::exchange(other.model_, nullptr)) {}
  Model& operator=(Model&& other) noexcept {
    std::swap(model_, other.model_);
    return *this;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::vector<tunefarm_tensor> inputs() const { return describe(tunefarm_inputs); }
  std::vector<tunefarm_tensor> outputs() const { return describe(tunefarm_outputs); }

  /// Run on a pointer for each input and output. Throws Error.
  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
    count(inputs, outputs);
    check(tunefarm_run(model_, inputs.data(), outputs.data()));
  }

  /// Run a decoder, and append `tokens` new tokens to its cache. Throws Error.
  void step(std::size_t tokens, const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
    count(inputs, outputs);
    check(tunefarm_step(model_, tokens, inputs.data(), outputs.data()));
  }

  /// Keep only the first `length` tokens in a decoder's cache. Throws Error.
  void reset(std::size_t length = 0) { check(tunefarm_reset(model_, length)); }

 private:
  void count(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) const {
    if (inputs.size() != this->inputs().size() || outputs.size() != this->outputs().size())
      throw std::invalid_argument("pass a pointer for each input and output of the model");
  }
  static void check(const tunefarm_status& status) {
    if (status.code != TUNEFARM_OK) throw Error(status);
  }
  template <typename Function>
  std::vector<tunefarm_tensor> describe(Function function) const {
    const tunefarm_tensor* tensors = nullptr;
    size_t count = 0;
    check(function(model_, &tensors, &count));
    return std::vector<tunefarm_tensor>(tensors, tensors + count);
  }
  tunefarm_model* model_ = nullptr;
};

}  // namespace tunefarm_runtime
