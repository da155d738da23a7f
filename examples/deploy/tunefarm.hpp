// A tunefarm service's compiled models and schedules, over libcurl. Header only: include it, link with -lcurl.
//
//   tunefarm::Service service("http://tuner:8760", token);
//   auto answer = service.best_artifact(model_sha256, "rpi5", etag);
//   if (answer.is_new()) store(answer.body, answer.etag);      // a tar file of model.so and manifest.json
//
// An answer's ETag, given to the next call, makes that a 304 without a body while nothing is faster.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tunefarm {

struct Answer {
  long status = 0;
  std::string etag;
  std::string body;

  bool is_new() const { return status == 200; }
};

// The service could not be asked, or refused: the message has curl's words or the problem document.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Service {
 public:
  explicit Service(std::string url, std::string token = "") : url_(std::move(url)), token_(std::move(token)) {}

  // The fastest compiled model of the ONNX file with this SHA-256, as a tar file.
  Answer best_artifact(const std::string& model, const std::string& target, const std::string& etag = "") const {
    return call("/v1/artifacts/best?model=" + escaped(model) + "&target=" + escaped(target), etag);
  }

  // The best schedule of a workload, as JSON.
  Answer best_schedule(const std::string& workload, const std::string& target, const std::string& etag = "") const {
    return call("/v1/schedules/best?workload=" + escaped(workload) + "&target=" + escaped(target), etag);
  }

  // Those of many workloads in one call, as JSON. Workloads are hashes: digits, letters, - and _.
  Answer best_schedules(const std::vector<std::string>& workloads, const std::string& target,
                        const std::string& etag = "") const {
    std::string listed;
    for (const auto& workload : workloads) listed += (listed.empty() ? "\"" : ",\"") + workload + "\"";
    return call("/v1/schedules:query", etag, "{\"target\":\"" + target + "\",\"workloads\":[" + listed + "]}");
  }

 private:
  using Handle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
  using List = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

  static std::string escaped(const std::string& text) {
    std::unique_ptr<char, decltype(&curl_free)> found(
        curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())), &curl_free);
    return found ? found.get() : "";
  }

  static size_t on_body(char* data, size_t, size_t bytes, void* answer) {
    static_cast<Answer*>(answer)->body.append(data, bytes);
    return bytes;
  }

  static size_t on_header(char* data, size_t, size_t bytes, void* answer) {
    std::string_view line(data, bytes);
    constexpr std::string_view name = "etag:";
    if (line.size() > name.size() && curl_strnequal(data, name.data(), name.size())) {
      line.remove_prefix(name.size());
      auto begin = line.find_first_not_of(" \t"), end = line.find_last_not_of(" \t\r\n");
      if (begin != line.npos) static_cast<Answer*>(answer)->etag = line.substr(begin, end - begin + 1);
    }
    return bytes;
  }

  Answer call(const std::string& path, const std::string& etag, const std::string& body = "") const {
    Handle handle(curl_easy_init(), &curl_easy_cleanup);
    if (!handle) throw Error("curl can't be set up");
    std::vector<std::string> lines;
    if (!token_.empty()) lines.push_back("Authorization: Bearer " + token_);
    if (!etag.empty()) lines.push_back("If-None-Match: " + etag);
    if (!body.empty()) lines.push_back("Content-Type: application/json");
    List headers(nullptr, &curl_slist_free_all);
    for (const auto& line : lines) headers.reset(curl_slist_append(headers.release(), line.c_str()));
    Answer answer;
    const std::string address = url_ + path;
    curl_easy_setopt(handle.get(), CURLOPT_URL, address.c_str());
    curl_easy_setopt(handle.get(), CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(handle.get(), CURLOPT_CONNECTTIMEOUT, 5L);
    curl_easy_setopt(handle.get(), CURLOPT_WRITEFUNCTION, &on_body);
    curl_easy_setopt(handle.get(), CURLOPT_WRITEDATA, &answer);
    curl_easy_setopt(handle.get(), CURLOPT_HEADERFUNCTION, &on_header);
    curl_easy_setopt(handle.get(), CURLOPT_HEADERDATA, &answer);
    if (!body.empty()) curl_easy_setopt(handle.get(), CURLOPT_POSTFIELDS, body.c_str());
    if (CURLcode code = curl_easy_perform(handle.get()); code != CURLE_OK) {
      throw Error(address + ": " + curl_easy_strerror(code));
    }
    curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &answer.status);
    if (answer.status != 200 && answer.status != 304) {
      throw Error(address + " answered " + std::to_string(answer.status) + ": " + answer.body);
    }
    return answer;
  }

  std::string url_, token_;
};

}  // namespace tunefarm
