// Built with a header of another release, linked with the library of this one.
#include <muster/strategy/cluster/program.h>

int main(int argc, char** argv) { muster::init(argc, argv); }
