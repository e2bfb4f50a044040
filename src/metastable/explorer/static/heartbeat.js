// Is anybody there? While something is awaited the server is asked now and then; when it says nothing at all for a while, that is said.

const BEAT = 2000, SILENCE = 6000; // milliseconds

export class Heartbeat {
  // `awaits()`: true while an answer is missing. `silent(yes)`: told when the silence begins and ends.
  constructor(connection, awaits, silent) {
    this.heard = performance.now();
    this.quiet = false;
    this.silent = silent;
    // A run in this browser needs no heartbeat: who computes is too busy to answer.
    if (globalThis.METASTABLE) return;
    let since = 0;
    setInterval(() => {
      if (document.hidden || !awaits()) { since = 0; return; }
      const now = performance.now();
      since ||= now;
      connection().send({ type: "ping" });
      if (!this.quiet && now - Math.max(since, this.heard) > SILENCE) { this.quiet = true; silent(true); }
    }, BEAT);
  }

  // Something came.
  beat() {
    this.heard = performance.now();
    if (this.quiet) { this.quiet = false; this.silent(false); }
  }

  // The same handlers, and each of them a sign of life.
  listenIn(handlers) {
    return Object.fromEntries(Object.entries(handlers).map(([name, handle]) => [name, (message) => { if (name !== "lost") this.beat(); return handle(message); }]));
  }
}
