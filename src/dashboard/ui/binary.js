// A binary payload: as text where it is text, else its bytes; an image as one, if one asks for it.

import { attr, h, show, swap } from './dom.js';
import * as format from './format.js';
import { plain } from './json.js';
import { raw, save } from './jsonview.js';
import { badge } from './widgets.js';

/** How many bytes are shown. */
const BYTES = 4096;

/** @param {string} base64 @returns {Uint8Array<ArrayBuffer>} */
export function decode(base64) {
  const binary = atob(base64.replaceAll('-', '+').replaceAll('_', '/'));
  const bytes = new Uint8Array(binary.length);
  for (let n = 0; n < binary.length; n++) bytes[n] = binary.charCodeAt(n);
  return bytes;
}

/** The text that bytes are in UTF-8, if they are one. @param {Uint8Array} bytes */
function textOf(bytes) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    return text.includes('\0') ? undefined : text;
  } catch {
    return undefined;
  }
}

/** Rows of so many bytes: the place, the bytes, what of them is ASCII. @param {Uint8Array} bytes @param {number} [width] */
export function hex(bytes, width = 16) {
  const rows = [];
  for (let at = 0; at < bytes.length; at += width) {
    const part = [...bytes.subarray(at, at + width)];
    const shown = part
      .map((byte) => byte.toString(16).padStart(2, '0'))
      .join(' ')
      .padEnd(3 * width - 1);
    rows.push(
      `${at.toString(16).padStart(8, '0')}  ${shown}  ${part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : '.')).join('')}`,
    );
  }
  return rows.join('\n');
}

/** Rows that fit on a phone, where it is one. @param {Uint8Array} bytes */
function hexNode(bytes) {
  const node = raw(hex(bytes, matchMedia('(max-width: 720px)').matches ? 8 : 16));
  node.classList.add('hex');
  return node;
}

export function binaryCard() {
  const body = h('div', { class: 'j-body' });
  const about = h('span', { class: 'muted' });
  const tools = h('div', { class: 'row' });
  const node = h(
    'section',
    { class: 'card', 'aria-label': 'Payload', hidden: true },
    h('div', { class: 'head' }, h('h2', null, 'Payload ', badge('binary')), tools),
    about,
    body,
  );
  /** @type {string | undefined} */ let before;
  return {
    node,
    set: (/** @type {any} */ job) => {
      const base64 = job.payload_base64;
      show(node, base64 !== undefined);
      if (base64 === undefined || base64 === before) return;
      before = base64;
      const bytes = decode(base64);
      const type = job.payload_type ?? 'application/octet-stream';
      const text = textOf(bytes);
      const asHex = () => [
        hexNode(bytes.subarray(0, BYTES)),
        bytes.length > BYTES && h('p', { class: 'muted' }, `The first ${format.count(BYTES)} bytes; download it for all.`),
      ];
      /** @type {any[]} */ const views = [];
      const view = (/** @type {string} */ label, /** @type {() => any[]} */ make) => {
        const click = () => {
          swap(body, ...make());
          for (const one of views) attr(one, 'aria-pressed', String(one === node));
        };
        const node = h('button', { type: 'button', class: 'quiet', on: { click } }, label);
        views.push(node);
        return node;
      };
      const image =
        /^image\/(png|jpeg|gif|webp|avif|bmp)$/.test(type) &&
        view('As an image', () => [
          h('img', { class: 'payload', src: `/v1/jobs/${encodeURIComponent(job.id)}/payload`, alt: 'The payload as an image' }),
        ]);
      const asText = text !== undefined && view('Text', () => [raw(text)]);
      const asBytes = view('Bytes', asHex);
      swap(about, `${plain(type)}, ${format.bytes(bytes.length)}`);
      swap(
        tools,
        image,
        asText,
        asBytes,
        h(
          'button',
          { type: 'button', class: 'quiet', on: { click: () => save(`${job.id}.bin`, bytes, 'application/octet-stream') } },
          'Download',
        ),
      );
      (asText || asBytes).click();
    },
  };
}
