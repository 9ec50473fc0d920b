/**
 * Computes the bytes that each token adds to a text. Decoding ids one by one requires bytes instead of strings, because
 * several tokens may form one character. Two families of tokenizers are supported: byte-level BPE (GPT-2's byte
 * alphabet; Qwen, Llama 3, DeepSeek) and byte-fallback BPE (SentencePiece's `▁` and `<0xNN>`; Gemma, Llama 2, Mistral).
 */
import { ProxyError } from '../../../base/errors.ts'

/** The fields of `decoder` in `tokenizer.json` that are used here. */
export interface DecoderConfig {
  type: string
  decoders?: DecoderConfig[]
  pattern?: { String?: string }
  content?: string
  start?: number
  prepend_scheme?: string
}

/** The contribution of a token to a text. */
export interface TokenPiece {
  /** Bytes of UTF-8, which may be a part of a character. Empty for an id outside the vocabulary. */
  bytes: Uint8Array
  /** The bytes as text; undefined if they are not complete characters. */
  text: string | undefined
}

/** The properties of a tokenizer that decoding requires. */
export interface TokenPieces {
  /**
   * Whether the first space of a text must be removed, because the tokenizer has added it (SentencePiece's dummy
   * prefix).
   */
  readonly stripsFirstSpace: boolean
  tokenToId(token: string): number | undefined
  isSpecial(id: number): boolean
  /**
   * Returns a token's contribution to a text. The result is cached: it is the same object for each call with this id.
   */
  getPiece(id: number): TokenPiece
}

/** The rules by which a tokenizer's decoder converts tokens to bytes. */
export interface PieceRules {
  /** Returns the bytes of a token. @param isAdded whether it is an added token, whose name is its text */
  getBytes(token: string, isAdded: boolean): Uint8Array
  /** See {@link TokenPieces.stripsFirstSpace}. */
  stripsFirstSpace: boolean
}

const utf8 = new TextEncoder()
const strictUtf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

export function createPiece(bytes: Uint8Array): TokenPiece {
  try {
    return { bytes, text: strictUtf8.decode(bytes) }
  } catch {
    return { bytes, text: undefined }
  }
}

/** Returns the rules of a decoder. @throws ProxyError `config_invalid` for a decoder of another family */
export function readPieceRules(decoder: DecoderConfig | null | undefined): PieceRules {
  const steps = decoder?.type === 'Sequence' ? (decoder.decoders ?? []) : decoder ? [decoder] : []
  if (steps.some((step) => step.type === 'ByteLevel')) {
    return {
      getBytes: (token, isAdded) => (isAdded ? utf8.encode(token) : decodeByteLevel(token)),
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
    getBytes: (token) => decodeByteFallback(token, spaceMark),
    stripsFirstSpace: steps.some(stripsFirstSpace),
  }
}

/** Returns the character that represents a space in tokens; undefined for an unknown decoder. */
function findSpaceMark(steps: DecoderConfig[]): string | undefined {
  if (steps.some((step) => step.type === 'Metaspace')) return '▁'
  const replace = steps.find((step) => step.type === 'Replace' && step.content === ' ')
  return replace?.pattern?.String
}

function stripsFirstSpace(step: DecoderConfig): boolean {
  if (step.type === 'Metaspace') return step.prepend_scheme !== 'never'
  return step.type === 'Strip' && step.content === ' ' && step.start === 1
}

function decodeByteFallback(token: string, spaceMark: string): Uint8Array {
  const byte = /^<0x([0-9A-F]{2})>$/.exec(token)?.[1]
  return byte === undefined
    ? utf8.encode(token.replaceAll(spaceMark, ' '))
    : Uint8Array.of(Number.parseInt(byte, 16))
}

/**
 * Returns the bytes of a token. If one of its characters is not in the byte alphabet, the token represents its own
 * text, as in Hugging Face's decoder.
 */
function decodeByteLevel(token: string): Uint8Array {
  const bytes: number[] = []
  for (const character of token) {
    const byte = BYTE_OF_CHARACTER.get(character)
    if (byte === undefined) return utf8.encode(token)
    bytes.push(byte)
  }
  return Uint8Array.from(bytes)
}

/** Returns a token's name in a byte-level vocabulary. @param bytes one character from U+0000 to U+00FF per byte */
export function encodeByteLevel(bytes: string): string {
  let name = ''
  for (let index = 0; index < bytes.length; index += 1) name += CHARACTER_OF_BYTE[bytes.charCodeAt(index)]
  return name
}

/**
 * GPT-2's byte alphabet: printable bytes represent themselves, and characters from U+0100 represent all other bytes.
 */
const BYTE_OF_CHARACTER: ReadonlyMap<string, number> = makeByteAlphabet()
/** The characters by byte. */
const CHARACTER_OF_BYTE: readonly string[] = [...BYTE_OF_CHARACTER.keys()]

function makeByteAlphabet(): Map<string, number> {
  const alphabet = new Map<string, number>()
  let next = 0x100
  for (let byte = 0; byte < 256; byte++) {
    const printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
    alphabet.set(String.fromCodePoint(printable ? byte : next++), byte)
  }
  return alphabet
}
