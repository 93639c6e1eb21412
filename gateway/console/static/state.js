// What the page knows of the fleet: brought up to date by the events of /console/events.

const MAX_POINTS = 300;
const MAX_DECISIONS = 60;
const TRAIL = 60; // seconds of each replica's load that its details show

export class State {
  facts = {};
  processes = 0;
  workers = new Map(); // url -> row
  trails = new Map(); // url -> [{inFlight, usage}]
  points = [];
  decisions = []; // newest first
  #byKey = new Map();

  snapshot({ workers, history, events, processes, ...facts }) {
    this.facts = facts;
    this.processes = processes;
    this.workers = new Map(workers.map((row) => [row.url, row]));
    this.points = history;
    this.decisions = [];
    this.#byKey.clear();
    this.#take(events);
    this.#trail();
  }

  delta({ workers, gone, point, events, processes }) {
    this.processes = processes;
    for (const change of workers) {
      this.workers.set(change.url, { ...this.workers.get(change.url), ...change });
    }
    for (const url of gone) {
      this.workers.delete(url);
      this.trails.delete(url);
    }
    this.points.push(point);
    if (this.points.length > MAX_POINTS) this.points.shift();
    this.#take(events);
    this.#trail();
  }

  get now() {
    return this.points.at(-1);
  }

  #take(events) {
    for (const event of events) {
      if (event.kind === "choice") {
        this.#byKey.set(event.key, event);
        this.decisions.unshift(event);
        continue;
      }
      const { kind, key, ...news } = event;
      const decision = this.#byKey.get(key);
      if (decision) Object.assign(decision, news);
    }
    for (const old of this.decisions.splice(MAX_DECISIONS)) this.#byKey.delete(old.key);
  }

  #trail() {
    for (const row of this.workers.values()) {
      const trail = this.trails.get(row.url) ?? [];
      trail.push({ load: row.in_flight, usage: row.usage });
      if (trail.length > TRAIL) trail.shift();
      this.trails.set(row.url, trail);
    }
  }
}

// What a replica's state is called and drawn as; a breaker that is not closed, or a rest, counts more than "ready".
export function stateOf(row) {
  if (row.state !== "ready") return row.state;
  if (row.breaker !== "closed") return "broken";
  return row.resting ? "resting" : "ready";
}

export const STATES = {
  ready: "takes requests",
  resting: "asked to be spared for a moment",
  broken: "its circuit breaker is open: failed too often",
  starting: "known, not ready yet",
  degraded: "misses its probes",
  draining: "finishes what it has, takes nothing new",
};
