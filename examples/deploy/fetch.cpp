// Fetches a model's fastest library, unless the one that is here is that already:
//
//   g++ -std=c++17 fetch.cpp -lcurl -o fetch
//   TUNEFARM_TOKEN=... ./fetch http://tuner:8760 MODEL_SHA256 rpi5 model.tar
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tunefarm.hpp"

int main(int count, char** words) {
  if (count != 5) {
    std::cerr << "usage: fetch URL MODEL_SHA256 TARGET FILE\n";
    return 2;
  }
  const std::string file = words[4], tag_file = file + ".etag";
  const char* token = std::getenv("TUNEFARM_TOKEN");
  std::ostringstream etag;
  if (std::ifstream(file)) etag << std::ifstream(tag_file).rdbuf();
  try {
    auto answer = tunefarm::Service(words[1], token ? token : "").best_artifact(words[2], words[3], etag.str());
    if (answer.is_new()) {
      std::ofstream(file, std::ios::binary) << answer.body;
      std::ofstream(tag_file) << answer.etag;
    }
    std::cout << file << (answer.is_new() ? " is new\n" : " is the fastest still\n");
  } catch (const tunefarm::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
