// A program that no host can start: its shared library is not where the loader looks.
int only_in_the_library();

int main() { return only_in_the_library(); }
