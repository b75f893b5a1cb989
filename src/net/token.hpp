// What the processes of a job know and others do not.
#pragma once

#include <functional>
#include <string>

namespace shingle::net {

struct Token {
  std::string value;   ///< empty: there is none
  std::string source;  ///< the variable that it is from
  /// The user chose it to keep others out. What a launcher gives may be a mere number of the job, which only
  /// keeps jobs apart.
  bool is_secret = false;
};

/// SHINGLE_TOKEN, or the content of the file that SHINGLE_TOKEN_FILE names; else what the launcher gives all
/// processes of a job alike (TORCHELASTIC_RUN_ID, Open MPI's random key, PMIX_NAMESPACE, SLURM_JOB_ID); else
/// none. Throws InvalidArgument that names a variable that is empty or a file that others may read, IoError
/// where there is no such file.
Token job_token(const std::function<const char*(const char* name)>& environment);
/// The same from this process's own environment.
Token job_token();

}  // namespace shingle::net
