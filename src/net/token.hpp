// A value that the processes of a job share and others do not know.
#pragma once

#include <functional>
#include <string>

namespace shingle::net {

struct Token {
  std::string value;   ///< empty: no token
  std::string source;  ///< environment variable that holds the value
  /// True if the user set the token, to keep others out. A launcher's value may be a mere job number, which
  /// only keeps jobs apart.
  bool is_secret = false;
};

/// Finds the job's token: SHINGLE_TOKEN, or the content of the file that SHINGLE_TOKEN_FILE names. Otherwise
/// it takes the value that the launcher gives to all processes of a job. That is TORCHELASTIC_RUN_ID, Open
/// MPI's random key, PMIX_NAMESPACE, or SLURM_JOB_ID. Without any of these, there is no token.
///
/// Throws InvalidArgument that names an empty variable, or a file that others may read. Throws IoError if the
/// file does not exist.
Token job_token(const std::function<const char*(const char* name)>& environment);
/// As above, from this process's environment.
Token job_token();

}  // namespace shingle::net
