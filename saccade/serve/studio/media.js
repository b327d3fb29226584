// Pictures and sounds that a person gives: as data: URLs, small enough for a link where they can be.

const MAX_SIDE = 640; // of a picture
const RATE = 16000; // of a sound, in samples a second

const dataUrl = (blob) =>
  new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(new Error("This file cannot be read."));
    reader.readAsDataURL(blob);
  });

export async function readPicture(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${file.name ?? "This"} is not a picture that this browser reads.`);
  }
  const shrink = MAX_SIDE / Math.max(bitmap.width, bitmap.height);
  if (shrink >= 1 && file.size < 300_000 && /png|jpeg/.test(file.type)) return dataUrl(file);
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(bitmap.width * Math.min(1, shrink));
  canvas.height = Math.round(bitmap.height * Math.min(1, shrink));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(shrink < 1 ? "image/jpeg" : "image/png", 0.92);
}

/** A sound as one channel of 16 bits. */
export async function readSound(file) {
  if (/wav/.test(file.type) && file.size < 1_000_000) return dataUrl(file);
  let heard;
  try {
    heard = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name ?? "This"} is not a sound that this browser reads.`);
  }
  const offline = new OfflineAudioContext(1, Math.max(1, Math.ceil(heard.duration * RATE)), RATE);
  const source = offline.createBufferSource();
  source.buffer = heard;
  source.connect(offline.destination);
  source.start();
  const samples = (await offline.startRendering()).getChannelData(0);
  const wave = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (at, text) =>
    [...text].forEach((char, i) => wave.setUint8(at + i, char.charCodeAt(0)));
  write(0, "RIFF");
  wave.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt ");
  wave.setUint32(16, 16, true);
  wave.setUint16(20, 1, true); // plain samples
  wave.setUint16(22, 1, true); // one channel
  wave.setUint32(24, RATE, true);
  wave.setUint32(28, 2 * RATE, true);
  wave.setUint16(32, 2, true);
  wave.setUint16(34, 16, true);
  write(36, "data");
  wave.setUint32(40, 2 * samples.length, true);
  samples.forEach((x, i) =>
    wave.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, x))), true),
  );
  return dataUrl(new Blob([wave], { type: "audio/wav" }));
}
