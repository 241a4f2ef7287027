// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/coordination/this_process.h"

#include <elf.h>
#include <limits.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "crosshatch/base/process.h"

namespace crosshatch::coordination {
namespace {

/// ELF notes are padded to words of four bytes.
size_t Padded(size_t bytes) { return (bytes + 3) / 4 * 4; }

std::string BuildIdIn(const char* notes, size_t size) {
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes + at, sizeof header);
    const size_t name = at + sizeof header;
    const size_t content = name + Padded(header.n_namesz);
    at = content + Padded(header.n_descsz);
    if (at > size) break;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      return absl::BytesToHexString(
          absl::string_view(notes + content, header.n_descsz));
    }
  }
  return "";
}

/// The first listed object is the program itself.
int VisitProgram(dl_phdr_info* info, size_t, void* id) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const std::string found = BuildIdIn(
        reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr),
        segment.p_memsz);
    if (!found.empty()) *static_cast<std::string*>(id) = found;
  }
  return 1;
}

}  // namespace

std::string ProgramId() {
  std::string id;
  dl_iterate_phdr(VisitProgram, &id);
  if (!id.empty()) return absl::StrCat("build ", id);
  struct stat file;
  if (stat("/proc/self/exe", &file) != 0) return "a program without a file";
  return absl::StrCat("a program of ", file.st_size, " bytes of ",
                      file.st_mtime);
}

Member ThisProcess(int rank, int size) {
  struct stat pids = {};
  stat("/proc/self/ns/pid", &pids);
  char host[HOST_NAME_MAX + 1] = "?";
  gethostname(host, sizeof host - 1);
  Member member;
  member.set_rank(rank);
  member.set_size(size);
  member.set_host(host);
  member.set_pid(getpid());
  member.set_program(ProgramId());
  member.set_machine(absl::StrCat(ThisMachine(), "\n", pids.st_ino));
  return member;
}

}  // namespace crosshatch::coordination
