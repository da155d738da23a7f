// A stand-in for NVML, libnvidia-ml.so.1: two GPUs, or one GPU with slices.
//
// Lines of the file `behaviour` beside the library, which is read at every initialisation:
//
//     slices 2          the only GPU has MIG on, and two slices
//     throttled 3 64    the first three readings of what limits the clocks give 64 (thermal slowdown)
//     lost              the GPU has fallen off the bus
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace {

enum { kOk = 0, kInvalid = 2, kNotSupported = 3, kNotFound = 6, kLost = 15 };

struct Device {
  int number;
  bool is_slice;
};
Device gpus[2] = {{0, false}, {1, false}}, slices[8];
int slice_count = 0, throttled_readings = 0;
unsigned long long reasons = 0;
bool is_lost = false;

void read_behaviour() {
  slice_count = throttled_readings = 0;
  is_lost = false;
  Dl_info found;
  dladdr(reinterpret_cast<void*>(&read_behaviour), &found);
  std::string path = found.dli_fname;
  std::ifstream file(path.substr(0, path.rfind('/') + 1) + "behaviour");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "slices") words >> slice_count;
    if (what == "throttled") words >> throttled_readings >> reasons;
    if (what == "lost") is_lost = true;
  }
  for (int number = 0; number < slice_count; ++number) slices[number] = {number, true};
}

int said(char* text, unsigned length, const std::string& what) {
  std::snprintf(text, length, "%s", what.c_str());
  return kOk;
}

std::string uuid_of(const Device* device) {
  return (device->is_slice ? "MIG-stand-in-" : "GPU-stand-in-") + std::to_string(device->number);
}

}  // namespace

extern "C" {

struct Memory {
  unsigned long long total, free, used;
};

int nvmlInit_v2() { return read_behaviour(), kOk; }
int nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }
int nvmlShutdown() { return kOk; }
const char* nvmlErrorString(int code) { return code == kLost ? "GPU is lost" : "an error of the stand-in"; }

int nvmlSystemGetDriverVersion(char* text, unsigned length) { return said(text, length, "580.0 (stand-in)"); }

int nvmlDeviceGetCount_v2(unsigned* count) { return *count = slice_count ? 1 : 2, kOk; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device** device) {
  if (index > 1) return kInvalid;
  return *device = &gpus[index], is_lost ? kLost : kOk;
}

int nvmlDeviceGetHandleByUUID(const char* uuid, Device** device) {
  for (Device& one : gpus)
    if (uuid_of(&one) == uuid) return *device = &one, is_lost ? kLost : kOk;
  for (int number = 0; number < slice_count; ++number)
    if (uuid_of(&slices[number]) == uuid) return *device = &slices[number], is_lost ? kLost : kOk;
  return kNotFound;
}

int nvmlDeviceGetName(Device* device, char* text, unsigned length) {
  return said(text, length, device->is_slice ? "stand-in for a MIG slice" : "stand-in for a GPU");
}

int nvmlDeviceGetUUID(Device* device, char* text, unsigned length) { return said(text, length, uuid_of(device)); }

int nvmlDeviceGetMigMode(Device*, unsigned* current, unsigned* pending) {
  *current = *pending = slice_count > 0;
  return slice_count ? kOk : kNotSupported;
}

int nvmlDeviceGetMaxMigDeviceCount(Device*, unsigned* count) { return *count = 7, kOk; }

int nvmlDeviceGetMigDeviceHandleByIndex(Device*, unsigned index, Device** device) {
  if (static_cast<int>(index) >= slice_count) return kNotFound;
  return *device = &slices[index], kOk;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device*, Device** gpu) { return *gpu = &gpus[0], kOk; }

int nvmlDeviceGetMemoryInfo(Device*, Memory* memory) {
  *memory = {1ull << 30, 3ull << 28, 1ull << 28};
  return is_lost ? kLost : kOk;
}

int nvmlDeviceGetTemperature(Device* device, int, unsigned* celsius) {
  return *celsius = 41, device->is_slice ? kNotSupported : is_lost ? kLost : kOk;
}

int nvmlDeviceGetPowerUsage(Device* device, unsigned* milliwatts) {
  return *milliwatts = 87500, device->is_slice ? kNotSupported : is_lost ? kLost : kOk;
}

int nvmlDeviceGetClockInfo(Device*, int, unsigned* mhz) { return *mhz = 1410, is_lost ? kLost : kOk; }

int nvmlDeviceGetCurrentClocksEventReasons(Device*, unsigned long long* now) {
  *now = throttled_readings-- > 0 ? reasons : 0;
  return is_lost ? kLost : kOk;
}

}  // extern "C"
