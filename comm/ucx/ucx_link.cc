// SPDX-License-Identifier: Apache-2.0
#include "crosshatch/comm/ucx/ucx_link.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "crosshatch/base/status_macros.h"
#include "crosshatch/base/threads.h"
#include "crosshatch/comm/ucx/ucx_api.h"
#include "crosshatch/comm/ucx/ucx_settings.h"

namespace crosshatch::internal {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a broken connection is not an error. Within this time the
/// coordinator reports a dead process.
constexpr std::chrono::seconds kGrace(5);
/// The longest sleep. Messages end a sleep through UCX's file descriptor; other
/// events are noticed after it.
constexpr std::chrono::milliseconds kSleep(50);
constexpr absl::Duration kForced = absl::Seconds(1);

constexpr int kHelloTag = INT32_MAX;

/// The upper half of UCX's tags is the sender's rank, the lower half the tag of
/// the message.
constexpr uint64_t kMessageTag = 0xffffffff;
uint64_t UcxTag(int from, int tag) {
  return static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(tag);
}

absl::StatusOr<std::vector<ProcessLocation>> GatherLocations(
    const UcxApi& api, const UcxJoin& join) {
  const ProcessLocation mine = ThisLocation(api.ucp_get_version_string());
  CH_ASSIGN_OR_RETURN(const std::vector<std::string> blobs,
                      join.gather(std::string(
                          reinterpret_cast<const char*>(&mine), sizeof mine)));
  std::vector<ProcessLocation> locations(static_cast<size_t>(join.size));
  for (size_t r = 0; r < locations.size(); ++r) {
    if (r < blobs.size() && blobs[r].size() == sizeof(ProcessLocation)) {
      std::memcpy(&locations[r], blobs[r].data(), sizeof(ProcessLocation));
    }
    if (std::strcmp(locations[r].ucx_version, locations[0].ucx_version) == 0) {
      continue;
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", r, " has UCX ", locations[r].ucx_version, ", and rank 0 has ",
        locations[0].ucx_version, ": install the same on all hosts"));
  }
  return locations;
}

class UcxLink final : public Link {
 public:
  UcxLink(const UcxApi& api, int rank, int size, int core_share)
      : api_(api),
        rank_(rank),
        size_(size),
        core_share_(core_share),
        peers_(static_cast<size_t>(size)) {}

  ~UcxLink() override {
    Close(UCP_EP_CLOSE_FLAG_FORCE, kForced);
    if (worker_ != nullptr) api_.ucp_worker_destroy(worker_);
    if (context_ != nullptr) api_.ucp_cleanup(context_);
  }

  absl::Status Open(const std::vector<UcxSetting>& settings);
  absl::StatusOr<std::string> Address();
  /// Connects to all peers. UCX 1.13 may end the process if a peer is lost that
  /// waits for the reply to its connection request. A synchronous message is
  /// sent after that reply has come, so its receiver has replied.
  absl::Status Connect(std::vector<std::string> addresses,
                       absl::Duration timeout,
                       absl::FunctionRef<absl::Status()> failure);
  void Close(unsigned flags, absl::Duration timeout);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int core_share() const override { return core_share_; }
  std::chrono::nanoseconds first_sleep() const override { return kSleep; }
  std::chrono::nanoseconds longest_sleep() const override { return kSleep; }
  int max_tag() const override { return kHelloTag - 1; }

  absl::Status TakeControl(int& from, std::string& taken) override;
  absl::Status Send(int to, int tag, const void* data, int64_t bytes,
                    LinkRequest& request) override;
  absl::Status Receive(int from, int tag, void* data, int64_t bytes,
                       LinkRequest& request) override;
  absl::Status Test(LinkRequest& request) override;
  absl::Status CancelReceive(LinkRequest& request) override;
  void Forget(LinkRequest& request) override;

  void Notify(int rank) override {
    if (rank == rank_) WakeSleeper();
  }
  uint32_t Arm() override {
    sleeps_.store(true);
    return api_.ucp_worker_arm(worker_) == UCS_OK ? kArmed : kHasEvents;
  }
  void Disarm() override { sleeps_.store(false); }
  void Sleep(uint32_t seen, std::chrono::nanoseconds longest) override {
    if (seen == kArmed) {
      pollfd events = {.fd = event_fd_, .events = POLLIN, .revents = 0};
      const auto milliseconds =
          std::chrono::ceil<std::chrono::milliseconds>(longest);
      poll(&events, 1, static_cast<int>(milliseconds.count()));
    }
    sleeps_.store(false);
  }

 private:
  static constexpr uint32_t kArmed = 0;
  static constexpr uint32_t kHasEvents = 1;

  struct Peer {
    std::string address;
    ucp_ep_h endpoint = nullptr;
    /// Why the connection is broken; UCS_OK if it is not.
    ucs_status_t broken = UCS_OK;
    Clock::time_point broken_since;
  };

  static void Break(Peer& peer, ucs_status_t why) {
    if (peer.broken != UCS_OK) return;
    peer.broken = why;
    peer.broken_since = Clock::now();
  }
  static void OnError(void* peer, ucp_ep_h, ucs_status_t why) {
    Break(*static_cast<Peer*>(peer), why);
  }

  absl::Status StartError(const std::string& what, ucs_status_t why) const {
    return absl::UnavailableError(absl::StrCat(
        "UCX does not start: ", what, ": ", api_.ucs_status_string(why),
        "; UCX_LOG_LEVEL=error shows why"));
  }
  ucp_ep_h EndpointTo(int rank);
  void Keep(ucs_status_ptr_t started, int peer, LinkRequest& request);
  void Progress() {
    // Bounded, because others wait for the caller's lock.
    for (int i = 0; i < 8 && api_.ucp_worker_progress(worker_) != 0; ++i) {
    }
  }
  void WakeSleeper() {
    if (sleeps_.load()) api_.ucp_worker_signal(worker_);
  }
  static void* Held(const LinkRequest& request) {
    return reinterpret_cast<void*>(request.handle);
  }

  const UcxApi& api_;
  const int rank_;
  const int size_;
  const int core_share_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  /// Never resized, because UCX has pointers to its elements.
  std::vector<Peer> peers_;
  std::atomic<bool> sleeps_ = false;

  LinkRequest incoming_;
  std::string incoming_message_;
};

absl::Status UcxLink::Open(const std::vector<UcxSetting>& settings) {
  ucp_config_t* config = nullptr;
  ucs_status_t status = api_.ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return StartError("ucp_config_read", status);
  for (const UcxSetting& setting : settings) {
    if (std::getenv(absl::StrCat("UCX_", setting.name).c_str()) != nullptr) {
      continue;
    }
    status =
        api_.ucp_config_modify(config, setting.name, setting.value.c_str());
    if (status == UCS_OK) continue;
    api_.ucp_config_release(config);
    return StartError(absl::StrCat("UCX_", setting.name, "=", setting.value),
                      status);
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  status = api_.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config,
                                 &context_);
  api_.ucp_config_release(config);
  if (status != UCS_OK) return StartError("ucp_init", status);
  ucp_worker_params_t worker = {};
  worker.field_mask =
      UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  status = api_.ucp_worker_create(context_, &worker, &worker_);
  if (status != UCS_OK) return StartError("ucp_worker_create", status);
  status = api_.ucp_worker_get_efd(worker_, &event_fd_);
  return status == UCS_OK ? absl::OkStatus()
                          : StartError("ucp_worker_get_efd", status);
}

absl::StatusOr<std::string> UcxLink::Address() {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  const ucs_status_t status =
      api_.ucp_worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return StartError("ucp_worker_get_address", status);
  std::string text(reinterpret_cast<const char*>(address), bytes);
  api_.ucp_worker_release_address(worker_, address);
  return text;
}

absl::Status UcxLink::Connect(std::vector<std::string> addresses,
                              absl::Duration timeout,
                              absl::FunctionRef<absl::Status()> failure) {
  const auto until = Clock::now() + absl::ToChronoNanoseconds(timeout);
  for (size_t r = 0; r < peers_.size(); ++r) {
    peers_[r].address = std::move(addresses[r]);
  }
  std::vector<LinkRequest> requests;
  const ucp_request_param_t param = {};
  for (int i = 1; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    CH_RETURN_IF_ERROR(
        Receive(peer, kHelloTag, nullptr, 0, requests.emplace_back()));
    const ucp_ep_h endpoint = EndpointTo(peer);
    requests.push_back({.pending = true, .peer = peer});
    if (endpoint == nullptr) continue;
    Keep(api_.ucp_tag_send_sync_nbx(endpoint, nullptr, 0,
                                    UcxTag(rank_, kHelloTag), &param),
         peer, requests.back());
  }
  for (LinkRequest& request : requests) {
    while (request.pending) {
      Progress();
      CH_RETURN_IF_ERROR(Test(request));
      CH_RETURN_IF_ERROR(failure());
      if (Clock::now() > until) {
        return absl::DeadlineExceededError(absl::StrCat(
            "rank ", rank_, " waited for ", absl::FormatDuration(timeout),
            " for rank ", request.peer, " to connect by UCX"));
      }
      if (request.pending) usleep(20);
    }
  }
  return absl::OkStatus();
}

void UcxLink::Close(unsigned flags, absl::Duration timeout) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = flags;
  std::vector<void*> closing;
  for (Peer& peer : peers_) {
    if (peer.endpoint == nullptr) continue;
    // A failed endpoint cannot be flushed.
    if (peer.broken != UCS_OK) param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const request = api_.ucp_ep_close_nbx(peer.endpoint, &param);
    param.flags = flags;
    peer.endpoint = nullptr;
    Break(peer, UCS_ERR_CANCELED);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  const auto until = Clock::now() + absl::ToChronoNanoseconds(timeout);
  for (void* request : closing) {
    while (api_.ucp_request_check_status(request) == UCS_INPROGRESS &&
           Clock::now() < until) {
      if (api_.ucp_worker_progress(worker_) == 0) usleep(20);
    }
    api_.ucp_request_free(request);
  }
}

ucp_ep_h UcxLink::EndpointTo(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.broken != UCS_OK) return nullptr;
  if (peer.endpoint != nullptr) return peer.endpoint;
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  // Otherwise the end of a peer would end this process.
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = OnError, .arg = &peer};
  const ucs_status_t status =
      api_.ucp_ep_create(worker_, &params, &peer.endpoint);
  if (status == UCS_OK) return peer.endpoint;
  peer.endpoint = nullptr;
  Break(peer, status);
  return nullptr;
}

void UcxLink::Keep(ucs_status_ptr_t started, int peer, LinkRequest& request) {
  request = {.peer = peer};
  if (started == nullptr) return;
  request.pending = true;
  if (UCS_PTR_IS_ERR(started)) {
    Break(peers_[static_cast<size_t>(peer)], UCS_PTR_STATUS(started));
    return;
  }
  request.handle = reinterpret_cast<uint64_t>(started);
  // The operation may need progress that no event of UCX announces.
  WakeSleeper();
}

absl::Status UcxLink::Send(int to, int tag, const void* data, int64_t bytes,
                           LinkRequest& request) {
  const ucp_ep_h endpoint = EndpointTo(to);
  if (endpoint == nullptr) {
    request = {.pending = true, .peer = to};
    return absl::OkStatus();
  }
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  Keep(api_.ucp_tag_send_nbx(endpoint, data, static_cast<size_t>(bytes),
                             UcxTag(rank_, tag), &param),
       to, request);
  return absl::OkStatus();
}

absl::Status UcxLink::Receive(int from, int tag, void* data, int64_t bytes,
                              LinkRequest& request) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  Keep(api_.ucp_tag_recv_nbx(worker_, data, static_cast<size_t>(bytes),
                             UcxTag(from, tag), ~uint64_t{0}, &param),
       from, request);
  return absl::OkStatus();
}

absl::Status UcxLink::TakeControl(int& from, std::string& taken) {
  from = -1;
  Progress();
  if (!incoming_.pending) {
    ucp_tag_recv_info_t info = {};
    const ucp_tag_message_h message = api_.ucp_tag_probe_nb(
        worker_, UcxTag(0, kControlTag), kMessageTag, /*remove=*/1, &info);
    if (message == nullptr) return absl::OkStatus();
    incoming_message_.resize(info.length);
    ucp_request_param_t param = {};
    Keep(api_.ucp_tag_msg_recv_nbx(worker_, incoming_message_.data(),
                                   info.length, message, &param),
         static_cast<int>(info.sender_tag >> 32), incoming_);
  }
  CH_RETURN_IF_ERROR(Test(incoming_));
  // If the sender is gone the rest does not come. Messages of others do.
  if (incoming_.pending && incoming_.handle == 0)
    incoming_.pending = false;
  else if (!incoming_.pending) {
    from = incoming_.peer;
    std::swap(taken, incoming_message_);
  }
  return absl::OkStatus();
}

absl::Status UcxLink::Test(LinkRequest& request) {
  if (!request.pending) return absl::OkStatus();
  Peer& peer = peers_[static_cast<size_t>(request.peer)];
  if (request.handle != 0) {
    const ucs_status_t status = api_.ucp_request_check_status(Held(request));
    if (status != UCS_INPROGRESS) {
      api_.ucp_request_free(Held(request));
      request.handle = 0;
      request.pending = status != UCS_OK && status != UCS_ERR_CANCELED;
      if (!request.pending) return absl::OkStatus();
      Break(peer, status);
    }
  }
  if (peer.broken == UCS_OK || Clock::now() - peer.broken_since < kGrace) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("the connection of rank ", rank_, " to rank ", request.peer,
                   " broke: ", api_.ucs_status_string(peer.broken)));
}

absl::Status UcxLink::CancelReceive(LinkRequest& request) {
  if (request.handle == 0) {
    request.pending = false;
  } else {
    api_.ucp_request_cancel(worker_, Held(request));
  }
  return absl::OkStatus();
}

void UcxLink::Forget(LinkRequest& request) {
  request.pending = false;
  if (request.handle == 0) return;
  // Has no effect on a send.
  api_.ucp_request_cancel(worker_, Held(request));
  Peer& peer = peers_[static_cast<size_t>(request.peer)];
  if (api_.ucp_request_check_status(Held(request)) == UCS_INPROGRESS &&
      peer.endpoint != nullptr) {
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const closing = api_.ucp_ep_close_nbx(peer.endpoint, &param);
    peer.endpoint = nullptr;
    Break(peer, UCS_ERR_CANCELED);
    if (UCS_PTR_IS_PTR(closing)) api_.ucp_request_free(closing);
  }
  api_.ucp_request_free(Held(request));
  request.handle = 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> OpenUcxLink(
    const UcxJoin& join, int ranks, absl::Duration timeout,
    absl::FunctionRef<absl::Status()> failure) {
  if (join.size < 1 || join.rank < 0 || join.rank >= join.size ||
      !join.gather) {
    return absl::InvalidArgumentError(absl::StrCat("UcxJoin: rank ", join.rank,
                                                   " of ", join.size,
                                                   ", or `gather` is missing"));
  }
  if (ranks < 0 || ranks > join.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a job of ", ranks, " ranks, and there are ", join.size, " processes"));
  }
  CH_ASSIGN_OR_RETURN(const UcxApi* api, LoadUcx());
  CH_ASSIGN_OR_RETURN(const std::vector<ProcessLocation> locations,
                      GatherLocations(*api, join));
  std::vector<CoreSet> cores;
  size_t self = 0;
  for (const ProcessLocation& location : locations) {
    if (!location.IsOnMachineOf(locations[join.rank])) continue;
    if (&location == &locations[join.rank]) self = cores.size();
    cores.push_back(location.cores);
  }
  auto link = std::make_unique<UcxLink>(
      *api, join.rank, ranks > 0 ? ranks : join.size, CoreShare(cores, self));
  CH_RETURN_IF_ERROR(link->Open(UcxSettings(locations, join.coordinator_host)));
  CH_ASSIGN_OR_RETURN(std::string address, link->Address());
  CH_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                      join.gather(std::move(address)));
  if (link->rank() < link->size()) {
    CH_RETURN_IF_ERROR(link->Connect(std::move(addresses), timeout, failure));
  }
  return link;
}

void CloseUcxLink(std::unique_ptr<Link> link, absl::Duration timeout) {
  static_cast<UcxLink&>(*link).Close(/*flags=*/0, timeout);
}

}  // namespace crosshatch::internal
