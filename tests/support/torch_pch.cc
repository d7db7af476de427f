// Exists for its precompiled header; see tests/CMakeLists.txt.
int main() { return 0; }
