/**
 * What each token adds to a text, as bytes. Decoding id by id needs bytes, not strings: one character may be spread
 * over several tokens. Two families of tokenizers are in use for language models, and both are covered:
 * byte-level BPE (GPT-2's byte alphabet; Qwen, Llama 3, DeepSeek) and byte-fallback BPE (SentencePiece's `▁` and
 * `<0xNN>`; Gemma, Llama 2, Mistral).
 */
import { ProxyError } from '../../../base/errors.ts'

/** The `decoder` of a tokenizer.json, as far as it is read here. */
export interface DecoderConfig {
  type: string
  decoders?: DecoderConfig[]
  pattern?: { String?: string }
  content?: string
  start?: number
  prepend_scheme?: string
}

export interface TokenPiece {
  /** UTF-8; possibly a part of a character. Empty for an id that the vocabulary does not have. */
  bytes: Uint8Array
  /** The same as text, where the bytes are whole characters. */
  text: string | undefined
}

/** A vocabulary, as far as decoding needs it. */
export interface TokenPieces {
  /** Whether a text's first space is the tokenizer's own (SentencePiece's dummy prefix). */
  readonly stripsFirstSpace: boolean
  tokenToId(token: string): number | undefined
  isSpecial(id: number): boolean
  /** What the token adds to a text. The same object each time. */
  getPiece(id: number): TokenPiece
}

export interface PieceRules {
  /**
   * The bytes that a token of the vocabulary stands for. Added tokens are those that were put in beside the model's.
   */
  bytesOf(token: string, isAdded: boolean): Uint8Array
  /** Whether a text's first space is the tokenizer's own and does not belong to the text. */
  stripsFirstSpace: boolean
}

const utf8 = new TextEncoder()
const strictUtf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

export function pieceFromBytes(bytes: Uint8Array): TokenPiece {
  try {
    return { bytes, text: strictUtf8.decode(bytes) }
  } catch {
    return { bytes, text: undefined }
  }
}

/** @throws ProxyError `config_invalid` for a decoder of another family */
export function readPieceRules(decoder: DecoderConfig | null | undefined): PieceRules {
  const steps = decoder?.type === 'Sequence' ? (decoder.decoders ?? []) : decoder ? [decoder] : []
  if (steps.some((step) => step.type === 'ByteLevel')) {
    return {
      bytesOf: (token, isAdded) => (isAdded ? utf8.encode(token) : byteLevelBytes(token)),
      stripsFirstSpace: false,
    }
  }
  const spaceMark = findSpaceMark(steps)
  if (spaceMark === undefined) {
    throw new ProxyError(
      'config_invalid',
      `tokenizer.json has a decoder that is not supported: ${decoder?.type}`,
    )
  }
  return {
    bytesOf: (token) => byteFallbackBytes(token, spaceMark),
    stripsFirstSpace: steps.some(stripsFirstSpace),
  }
}

function findSpaceMark(steps: DecoderConfig[]): string | undefined {
  if (steps.some((step) => step.type === 'Metaspace')) return '▁'
  const replace = steps.find((step) => step.type === 'Replace' && step.content === ' ')
  return replace?.pattern?.String
}

function stripsFirstSpace(step: DecoderConfig): boolean {
  if (step.type === 'Metaspace') return step.prepend_scheme !== 'never'
  return step.type === 'Strip' && step.content === ' ' && step.start === 1
}

function byteFallbackBytes(token: string, spaceMark: string): Uint8Array {
  const byte = /^<0x([0-9A-F]{2})>$/.exec(token)?.[1]
  return byte === undefined
    ? utf8.encode(token.replaceAll(spaceMark, ' '))
    : Uint8Array.of(Number.parseInt(byte, 16))
}

/** A character outside the byte alphabet stands for itself, as in Hugging Face's own decoder. */
function byteLevelBytes(token: string): Uint8Array {
  const bytes: number[] = []
  for (const character of token) {
    const byte = BYTE_OF_CHARACTER.get(character)
    if (byte === undefined) return utf8.encode(token)
    bytes.push(byte)
  }
  return Uint8Array.from(bytes)
}

/** GPT-2's alphabet: printable bytes stand for themselves, the others for the characters from U+0100 on. */
const BYTE_OF_CHARACTER: ReadonlyMap<string, number> = makeByteAlphabet()

function makeByteAlphabet(): Map<string, number> {
  const alphabet = new Map<string, number>()
  let next = 0x100
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
    alphabet.set(String.fromCodePoint(printable ? byte : next++), byte)
  }
  return alphabet
}
