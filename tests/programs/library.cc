int only_in_the_library() { return 0; }
