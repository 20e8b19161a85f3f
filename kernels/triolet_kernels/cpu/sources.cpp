// What the library was compiled from, so that its callers can tell whether they still agree with it.

extern "C" __attribute__((visibility("default"))) const char* triolet_sources() { return TRIOLET_SOURCES; }
