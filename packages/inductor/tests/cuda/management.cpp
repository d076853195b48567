// The management library (NVML) of a machine without a GPU: no NVLink fabric, no other process holds memory.
//
// Copyright The peakmem maintainers. Licensed under the Apache License, Version 2.0.
namespace {
constexpr int OK = 0, NOT_SUPPORTED = 3;
}

extern "C" {
int nvmlInit_v2() { return OK; }
int nvmlShutdown() { return OK; }
const char* nvmlErrorString(int) { return "none"; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return OK;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  static int one;
  *device = &one;
  return OK;
}
int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int* type) {
  *type = 0;
  return NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return OK; }  // leaves "not supported" as the caller set it
}
