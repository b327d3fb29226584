// The server's answers, and its errors as messages for people.

export class ApiError extends Error {
  constructor(message, code = "", status = 0) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

const LOST = "The server does not answer. Is `saccade serve` still running?";
const BUSY_RETRIES = 2;
let askKey = async () => null; // set by the page: asks a person for the server's key

export const onKeyNeeded = (ask) => (askKey = ask);

function headers() {
  const key = sessionStorage.getItem("key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

const sleep = (seconds, signal) =>
  new Promise((done, fail) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      fail(new DOMException("stopped", "AbortError"));
    });
  });

async function request(path, options, signal, tries = 0) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: headers(), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(LOST, "lost");
  }
  if (answer.ok) return answer;
  let told = {};
  try {
    told = (await answer.json()).error ?? {};
  } catch {
    // not one of ours: a proxy's, say
  }
  if (answer.status === 401 && tries < 3) {
    const key = await askKey(tries > 0);
    if (key) {
      sessionStorage.setItem("key", key);
      return request(path, options, signal, tries + 1);
    }
  }
  if ((answer.status === 429 || answer.status === 503) && tries < BUSY_RETRIES) {
    await sleep(Math.min(3, Number(answer.headers.get("Retry-After")) || 1), signal);
    return request(path, options, signal, tries + 1);
  }
  const message = told.message ?? `The server answered ${answer.status} ${answer.statusText}.`;
  throw new ApiError(message, told.code, answer.status);
}

export const get = async (path, signal) => (await request(path, {}, signal)).json();
export const post = async (path, body, signal) =>
  (await request(path, { method: "POST", body: JSON.stringify(body) }, signal)).json();

/** The events of a stream, one by one. */
export async function* events(path, body, signal) {
  const answer = await request(path, { method: "POST", body: JSON.stringify(body) }, signal);
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true }).replaceAll("\r\n", "\n");
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data:"));
      const text = lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      if (!text || text === "[DONE]") continue;
      const event = JSON.parse(text);
      if (event.error)
        throw new ApiError(event.error.message ?? String(event.error), event.error.code);
      yield event;
    }
  }
}

export const runs = async () => (await get("api/v1/runs")).runs;
export const predict = (body, signal) => post("api/v1/predict", body, signal);
export const inspect = (body, signal) => post("api/v1/inspect", body, signal);
export const score = (body, signal) => post("api/v1/score", body, signal);
const path = (name) => `api/v1/runs/${encodeURIComponent(name)}`;
export const curves = (name, signal) => get(`${path(name)}/curves`, signal);
export const worst = (name, n, signal) => get(`${path(name)}/worst?n=${n}`, signal);
export const neighbours = (run, word, n, signal) =>
  get(`api/v1/neighbours?${new URLSearchParams({ run, word, n })}`, signal);
export const analogy = (run, a, b, c, n, signal) =>
  get(`api/v1/analogy?${new URLSearchParams({ run, a, b, c, n })}`, signal);
