/* Senders and receivers: what a link does when it is attached, gets credit, a message or an outcome. */
#include "load.h"

#include <proton/codec.h>
#include <proton/terminus.h>

#include <stdio.h>
#include <unistd.h>

static const uint64_t SESSION_WAIT_MS = 500; /* drain: how long the broker looks for a session */

static bool is_receiver(const role *r) { return r->mode == RECEIVE || r->mode == DRAIN; }

/* ---- attaching ------------------------------------------------------------------------------ */

pn_link_t *new_link(peer *p, bool sends) {
  char name[64];
  snprintf(name, sizeof name, "bench-%s-%d-%zu", p->role->name, (int)getpid(), p->role->links_made++);
  pn_link_t *link = sends ? pn_sender(p->session, name) : pn_receiver(p->session, name);
  pn_link_set_snd_settle_mode(link, PN_SND_UNSETTLED);
  pn_link_set_rcv_settle_mode(link, PN_RCV_FIRST);
  return link;
}

static void put_named(pn_data_t *map, const char *name) {
  pn_data_put_map(map);
  pn_data_enter(map);
  pn_data_put_symbol(map, pn_bytes(strlen(name), name));
}

static void ask_for_next_session(pn_link_t *link) {
  pn_data_t *filter = pn_terminus_filter(pn_link_source(link));
  put_named(filter, "com.microsoft:session-filter");
  pn_data_put_null(filter);
  pn_data_exit(filter);
  if (options.mode != DRAIN) return; /* until there is one */
  pn_data_t *properties = pn_link_properties(link);
  put_named(properties, "com.microsoft:timeout");
  pn_data_put_uint(properties, (uint32_t)SESSION_WAIT_MS);
  pn_data_exit(properties);
}

static void open_link(load_link *l) {
  peer *p = l->peer;
  bool sends = p->role->mode == SEND;
  l->link = new_link(p, sends);
  l->attached = false;
  l->round_received = 0;
  pn_link_set_context(l->link, l);
  if (sends) {
    pn_terminus_set_address(pn_link_target(l->link), options.address);
  } else {
    pn_terminus_set_address(pn_link_source(l->link), l->source->address);
    if (options.settled) pn_link_set_snd_settle_mode(l->link, PN_SND_SETTLED);
    if (options.next_session) ask_for_next_session(l->link);
  }
  pn_link_open(l->link);
}

void open_links(peer *p) {
  p->link_count = p->role->mode == SEND ? 1 : (size_t)options.links;
  p->links = allocate(p->link_count, sizeof *p->links);
  for (size_t i = 0; i < p->link_count; i++) {
    p->links[i] = (load_link){.peer = p, .source = p->source};
    open_link(&p->links[i]);
    /* A session may have to be sent to before it can be taken: nobody waits for those links. */
    if (options.next_session && is_receiver(p->role)) link_attached();
  }
}

void link_attached(void) {
  if (atomic_fetch_sub(&links_awaited, 1) == 1) atomic_store(&begin_ns, now_ns());
}

/* ---- sender --------------------------------------------------------------------------------- */

static bool sends_keyless(const peer *p) {
  return options.half_keyed && (size_t)(p - p->role->peers) >= p->role->peer_count / 2;
}

/* Whether this connection's share of the messages is not sent yet. */
static bool has_more(const role *r, bool keyless) {
  if (!options.half_keyed) return r->sent < options.count;
  size_t half = options.count / 2;
  return keyless ? r->sent_keyless < half : r->sent - r->sent_keyless < options.count - half;
}

/* Sends while the window and the broker's credit have room. */
void send_more(peer *p) {
  role *r = p->role;
  bool keyless = sends_keyless(p);
  template *t = keyless ? &r->keyless : &r->transfer;
  pn_link_t *link = p->links[0].link;
  size_t each = t->messages;
  while (has_more(r, keyless) && pn_link_credit(link) > 0 &&
         (!p->in_flight || p->in_flight + each <= (size_t)options.window)) {
    uint64_t sequence = r->sent, at_ns = r->sent_ns[sequence] = now_ns();
    r->sent += each;
    if (keyless) r->sent_keyless += each;
    p->in_flight += each;
    stamp_transfer(t, sequence, at_ns);
    pn_delivery(link, pn_dtag((const char *)&sequence, sizeof sequence));
    pn_link_send(link, t->bytes, t->size);
    pn_link_advance(link);
  }
}

static void on_outcome(peer *p, pn_delivery_t *delivery) {
  if (!pn_delivery_updated(delivery) || !pn_delivery_remote_state(delivery)) return;
  role *r = p->role;
  uint64_t sequence, state = pn_delivery_remote_state(delivery);
  memcpy(&sequence, pn_delivery_tag(delivery).start, sizeof sequence);
  if (state == PN_ACCEPTED) {
    r->accepted += r->transfer.messages;
    note_latency(&r->latency, r->sent_ns[sequence], now_ns());
  } else {
    pn_condition_t *condition = pn_disposition_condition(pn_delivery_remote(delivery));
    if (pn_condition_is_set(condition)) fail_condition(r, "message refused", condition);
    fail(r, "message %llu got outcome 0x%llx instead of accepted", (unsigned long long)sequence,
         (unsigned long long)state);
  }
  pn_delivery_settle(delivery);
  p->in_flight -= r->transfer.messages;
  r->settled += r->transfer.messages;
  if (r->settled == options.count) finish(r);
}

/* ---- receiver ------------------------------------------------------------------------------- */

void check_message(role *r, source *from, uint64_t sequence, uint64_t sent_at_ns) {
  if (from->seen[sequence]) {
    r->duplicates++;
    return;
  }
  from->seen[sequence] = 1;
  r->distinct++;
  note_latency(&r->latency, sent_at_ns, now_ns());
}

static bool drains(void) {
  return options.mode == DRAIN || (options.next_session && !options.keep_session);
}

static void take_next_session(load_link *l) {
  pn_link_set_context(l->link, NULL); /* freed when the broker has detached it too */
  pn_link_close(l->link);
  open_link(l);
}

static void found_nothing(load_link *l) {
  role *r = l->peer->role;
  l->attached = false;
  if (++r->drained == r->peer_count * l->peer->link_count) finish(r);
}

/* Drained with nothing in between means empty; a queue's first round may end early over its partitions. */
static void on_drained(load_link *l) {
  role *r = l->peer->role;
  if (!l->attached || pn_link_credit(l->link) > 0 || pn_link_queued(l->link) > 0 || r->finished) return;
  if (options.next_session) {
    if (l->round_received < (size_t)options.credit) return take_next_session(l);
  } else if (l->received + 1 == l->round_received) {
    return found_nothing(l);
  }
  l->round_received = options.next_session ? 0 : l->received + 1;
  pn_link_drain(l->link, options.credit);
}

static void give_back(pn_delivery_t *delivery) {
  pn_delivery_update(delivery, PN_RELEASED);
  pn_delivery_settle(delivery);
}

static void on_message(load_link *l, pn_delivery_t *delivery) {
  if (!pn_delivery_readable(delivery) || pn_delivery_partial(delivery)) return;
  role *r = l->peer->role;
  if (options.backlog && r->finished) return give_back(delivery);
  size_t pending = pn_delivery_pending(delivery);
  if (pending > options.body_bytes + 4 * OVERHEAD_BYTES) return fail(r, "a message of %zu bytes", pending);
  ssize_t bytes = pn_link_recv(l->link, r->incoming, pending);
  r->received++;
  l->received++;
  if (options.backlog) {
    r->distinct++;
  } else if (options.mode != DRAIN) {
    uint64_t sequence, sent_at_ns;
    if (bytes > 0 && read_stamp(r->incoming, (size_t)bytes, &sequence, &sent_at_ns)) {
      check_message(r, l->source, sequence, sent_at_ns);
    } else {
      r->foreign++;
    }
  }
  if (!pn_delivery_settled(delivery)) pn_delivery_update(delivery, PN_ACCEPTED);
  pn_delivery_settle(delivery); /* settling the current delivery also advances the link */
  if (options.mode != DRAIN && r->distinct == options.count * options.source_count) return finish(r);
  if (options.next_session) l->round_received++;
  if (drains()) return on_drained(l);
  int credit = pn_link_credit(l->link);
  if (credit <= options.credit / 2) pn_link_flow(l->link, options.credit - credit);
}

static void start_receiver(load_link *l) {
  if (!l->attached || !l->peer->role->started) return;
  if (drains()) {
    pn_link_drain(l->link, options.credit);
  } else {
    pn_link_flow(l->link, options.credit);
  }
}

/* Artemis ignores a drain that comes before it has noted that the one before is answered (2.41, onFlow). */
void drain_again(peer *p) {
  if (options.mode != DRAIN || !p->role->started) return;
  for (size_t i = 0; i < p->link_count; i++) {
    if (p->links[i].attached && pn_link_credit(p->links[i].link) > 0) pn_link_drain(p->links[i].link, 0);
  }
}

void start_links(peer *p) {
  for (size_t i = 0; i < p->link_count; i++) {
    if (is_receiver(p->role)) start_receiver(&p->links[i]);
  }
}

/* ---- events --------------------------------------------------------------------------------- */

static void on_attached(load_link *l) {
  role *r = l->peer->role;
  /* A refused attach is answered with an empty terminus, then detached with the reason. */
  pn_terminus_t *remote = pn_link_is_sender(l->link) ? pn_link_remote_target(l->link)
                                                     : pn_link_remote_source(l->link);
  if (pn_terminus_get_type(remote) == PN_UNSPECIFIED) return;
  l->attached = true;
  if (is_receiver(r) && options.next_session) {
    r->sessions_taken++;
    start_receiver(l);
  } else {
    link_attached();
  }
}

static void on_detached(load_link *l, pn_link_t *link) {
  if (!l) return pn_link_free(link); /* a session that was given back */
  role *r = l->peer->role;
  if (r->finished) return;
  pn_condition_t *condition = pn_link_remote_condition(link);
  const char *name = pn_condition_get_name(condition);
  if (!options.next_session || !name || strcmp(name, "com.microsoft:timeout")) {
    return fail_condition(r, "link closed", condition);
  }
  if (options.mode == DRAIN) return found_nothing(l);
  take_next_session(l); /* no session became free for long: ask again */
}

void on_event(peer *p, pn_event_t *event) {
  pn_link_t *link = pn_event_link(event);
  load_link *l = link ? pn_link_get_context(link) : NULL;
  switch (pn_event_type(event)) {
    case PN_LINK_REMOTE_OPEN:
      if (l) on_attached(l);
      return;
    case PN_LINK_FLOW:
      if (l && is_receiver(p->role) && p->role->started && drains()) on_drained(l);
      return;
    case PN_DELIVERY:
      if (pn_link_is_sender(link)) return on_outcome(p, pn_event_delivery(event));
      if (l) on_message(l, pn_event_delivery(event));
      return;
    case PN_LINK_REMOTE_CLOSE:
    case PN_LINK_REMOTE_DETACH:
      return on_detached(l, link);
    default:
      return;
  }
}
