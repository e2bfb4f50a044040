// The connection to the server: JSON out, JSON and binary frames in, and a new attempt whenever it is lost.

const HEADER = 24;
const KINDS = { 1: "positions", 2: "leaders", 3: "attention" };

export class Connection {
  constructor(handlers) {
    this.handlers = handlers;
    this.delay = 400;
    this.socket = null;
    this.refused = false;
    this.open();
  }

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

  receive(data) {
    if (data instanceof ArrayBuffer) return this.frames(data);
    const message = JSON.parse(data);
    if (message.type === "full") {
      this.refused = true;
      this.delay = 4000;
      return this.handlers.full(message);
    }
    if (message.type === "hello") {
      this.socket = this.pending;
      this.refused = false;
      this.delay = 400;
    }
    return this.handlers[message.type]?.(message);
  }

  frames(buffer) {
    const view = new DataView(buffer);
    if (buffer.byteLength < HEADER || view.getUint16(0, false) !== 0x4d53) return;
    const [run, first, frames, tokens, components] = [4, 8, 12, 16, 20].map((at) => view.getUint32(at, true));
    const message = { panel: view.getUint8(3), run, first, frames, tokens, components, buffer, offset: HEADER };
    this.handlers[KINDS[view.getUint8(2)]]?.(message);
  }

  send(message) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(JSON.stringify(message));
    return true;
  }
}
