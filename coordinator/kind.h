// What kind of model's job it is: who must be there before it can begin, and what it makes of them.
//
// Three are here: a model whose variables live on parameter servers (ps_view.h), one whose
// variables live in one worker's executor, its home (home_view.h), and one whose steps several
// workers make together, each with all variables (group_view.h). Everything else of a job is the
// same for all, so nothing outside of a kind and its View asks which one it is. A kind outlives
// the views that it makes and keeps what it has learned in them.
//
// Threading: the coordinator's strand. Lifetime: World and Story outlive it, it outlives its views'
// calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/story.h"

namespace muster::coordinator {

class ModelJob;
class View;

class Kind {
 public:
  // The one that the spec asks for.
  static std::unique_ptr<Kind> Make(const World& world, const Story& story);
  virtual ~Kind() = default;

  // Those beside a worker that it cannot begin without and that are not there, in words.
  virtual std::vector<std::string> Missing() const = 0;
  // They have not come for long. True: from now on it makes do with those who are there.
  virtual bool MakeDo() = 0;
  // The job was submitted again: what was learned before says nothing about now.
  virtual void Reset() = 0;
  virtual std::unique_ptr<View> NewView(ModelJob& job) = 0;

  // The view of the job's plan was begun by a coordinator before this one, and its variables may
  // still be where they were: the next view of NewView() asks those who hold them.
  bool adopts() const { return adopts_; }
  void set_adopts(bool adopts) { adopts_ = adopts; }

 private:
  bool adopts_ = false;
};

}  // namespace muster::coordinator
