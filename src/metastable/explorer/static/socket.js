// Where runs come from. The page sends the same messages and gets the same answers whether a server computes them (`metastable
// explore`), a Web Worker in this browser (an exported page), or nobody, because the run was recorded (`Run.to_html`).
//
// A transport has `send(message)`, true when it was taken, and `request(name, body)`, a promise of { name, blob } for files and code.
// It gives what arrives to `receive`: JSON text or an object (a message), or an ArrayBuffer (frames).

import { play } from "./engine/recorded.js";
import { StaticTransport } from "./engine/transport.js";
import { isRecorded, recordedFile, recordingOf } from "./recordings.js";

const HEADER = 24;
const KINDS = { 1: "positions", 2: "leaders", 3: "attention" };

let current = null; // the transport of this page

export class Connection {
  constructor(handlers) {
    this.handlers = handlers;
    const receive = (data) => this.receive(data);
    current = this.transport = globalThis.METASTABLE ? new StaticTransport(globalThis.METASTABLE, receive) : new ServerTransport(receive, handlers);
  }

  receive(data) {
    if (data instanceof ArrayBuffer) return this.frames(data);
    const message = typeof data === "string" ? JSON.parse(data) : data;
    this.transport.heard?.(message);
    return this.handlers[message.type]?.(message);
  }

  frames(buffer) {
    const view = new DataView(buffer);
    if (buffer.byteLength < HEADER || view.getUint16(0, false) !== 0x4d53) return;
    const [run, first, frames, tokens, components] = [4, 8, 12, 16, 20].map((at) => view.getUint32(at, true));
    const message = { panel: view.getUint8(3), run, first, frames, tokens, components, buffer, offset: HEADER };
    this.handlers[KINDS[view.getUint8(2)]]?.(message);
  }

  send(message) { return isRecorded(message.setting) ? this.replay(message) : this.transport.send(message); }

  // A run that travels with the page: nobody is asked, and who computes for this panel may stop.
  replay({ type, panel, run, setting, clock }) {
    if (type !== "simulate") return false;
    this.transport.send({ type: "cancel", panel, run });
    const take = (data) => (data instanceof ArrayBuffer ? this.frames(data) : this.handlers[data.type]?.(data));
    recordingOf({ setting, clock }).then((recording) => play(recording, { panel, run }, take), (reason) => take({ type: "error", panel, run, about: type, message: reason.message }));
    return true;
  }
}

// A file or a text that belongs to settings, as { name, blob }: "python" with { settings, clock }, or "csv", "toml", "zarr", "mp4" with
// { setting, clock }. Throws an Error whose message can be shown.
export async function request(name, body) {
  const recorded = (body.settings ?? [body.setting]).find(isRecorded);
  return recorded ? recordedFile(name, recorded) : current.request(name, body);
}

// True where the charts of the server (Plotly) can be had.
export const hasServer = () => current instanceof ServerTransport;

class ServerTransport {
  constructor(receive, handlers) {
    this.receive = receive;
    this.handlers = handlers;
    this.delay = 400;
    this.socket = null;
    this.refused = false;
    this.wishes = []; // the last ones of the panels, for whoever stands in for the server
    this.substitute = null;
    this.open();
  }

  // A new attempt whenever the connection is lost.
  open() {
    const socket = new WebSocket(`ws://${location.host}/socket`);
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event) => this.receive(event.data);
    socket.onclose = () => {
      this.socket = null;
      if (!this.refused) this.handlers.lost();
      setTimeout(() => this.open(), this.delay);
      this.delay = Math.min(4000, this.delay * 1.6);
    };
    this.pending = socket;
  }

  heard(message) {
    if (message.type === "full") { this.refused = true; this.delay = 4000; }
    if (message.type === "hello") { this.socket = this.pending; this.refused = false; this.delay = 400; this.stand(null); }
    if (message.type === "warming") this.relay();
    if (message.type === "facts" && this.substitute && !message.browser) this.stand(null);
  }

  // While the engine is being compiled the browser computes instead, so that nobody looks at a still picture; the engine's run follows. A
  // wish is passed on when the server has begun with it and says that it is not ready: both begin with an empty run.
  relay() {
    if (!this.substitute) this.stand(new Worker("/static/engine/worker.js", { type: "module" }));
    for (const wish of this.wishes.splice(0)) this.substitute.postMessage(wish);
  }

  stand(worker) {
    this.substitute?.terminate();
    this.substitute = worker;
    if (worker) worker.onmessage = ({ data }) => { if (worker === this.substitute) this.receive(data.type === "facts" ? { ...data, browser: true } : data); };
  }

  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    if (message.type === "simulate") this.wishes = [...this.wishes.filter((wish) => wish.panel !== message.panel), message];
    else if (message.type !== "ping") this.substitute?.postMessage(message);
    return true;
  }

  async request(name, body) {
    const path = name === "python" ? "/python" : `/download/${name}`;
    let response;
    try {
      response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
    } catch {
      throw new Error("the server is not answering; is it still running?");
    }
    if (!response.ok) {
      const reason = await response.json().catch(() => ({}));
      throw new Error(reason.message ?? `the server answered ${response.status}`);
    }
    const file = /filename="([\w.-]+)"/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? `run.${name}`;
    return { name: file, blob: await response.blob() };
  }
}
