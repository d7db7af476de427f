// stdin, stdout and stderr of a process that was started without some of them.
#pragma once

namespace muster::process {

// Where stdin, stdout or stderr was closed for this process, what it opens next would be opened in
// its place, and a file or a connection be given our words. They become descriptors that take and
// give nothing, so that writing fails as before. Called before anything is opened.
void FillStandardStreams();

}  // namespace muster::process
