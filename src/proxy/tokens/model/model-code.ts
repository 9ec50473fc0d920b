/**
 * Finds a model's prompt encoder: Python code that its authors publish in the model's folder in place of a chat
 * template (`encoding/encoding_dsv4.py` of DeepSeek V4). It is third-party code, so it runs only if the operator trusts
 * its digest, and only in a confined process. For Mistral's models, the proxy contains an encoder.
 */
import { hash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import { readMistralEncoder } from './mistral-encoder.ts'

/** The code of a prompt encoder. */
export interface ModelCode {
  /** The path in the model's folder. */
  file: string
  source: string
  sha256: string
}

/** The options that select and trust the code of a prompt encoder. */
export interface ModelCodeOptions {
  /** The path of the encoder in the model's folder. Default: the only encoder, if the model has no chat template. */
  promptEncoder?: string | undefined
  /** The SHA-256 of trusted code, or the path of a local file with that code. */
  trustModelCode?: string | undefined
}

/** The file that identifies Mistral's models, for which the proxy's own encoder is used. */
const TEKKEN = 'tekken.json'

/** The folders of a model in which encoders are published. */
const FOLDERS = ['', 'encoding/']

/**
 * Returns whether a path in a model's folder is that of a prompt encoder. `tekken.json` selects the proxy's own encoder
 * for Mistral's models.
 */
export function isPromptEncoder(file: string): boolean {
  return file === TEKKEN || /^(encoding\/)?(encoding_\w+|(?!test_)\w+_encoding)\.py$/.test(file)
}

/**
 * Reads the encoder that renders a model's prompts.
 * @param model the model's name, for error messages
 * @returns undefined if the chat template renders them
 * @throws ProxyError `config_invalid` if the encoder is ambiguous, missing or not trusted
 */
export function readModelCode(
  directory: string,
  model: string,
  { hasTemplate, promptEncoder, trustModelCode }: ModelCodeOptions & { hasTemplate: boolean },
): ModelCode | undefined {
  const file = chooseEncoder(directory, model, { hasTemplate, promptEncoder })
  if (file === undefined) {
    if (trustModelCode === undefined) return undefined
    throw createConfigError(`${model} uses no prompt encoder: omit --trust-model-code`)
  }
  if (file === TEKKEN) {
    if (trustModelCode !== undefined) {
      throw createConfigError(`${model} uses no code of its authors: omit --trust-model-code`)
    }
    const source = readMistralEncoder(directory)
    return { file, source, sha256: hash('sha256', source) }
  }
  const bytes = readFileSync(join(directory, file))
  const sha256 = hash('sha256', bytes)
  const trusted = trustModelCode && getTrustedDigest(trustModelCode)
  if (trusted === sha256) return { file, source: bytes.toString('utf8'), sha256 }
  const found =
    trusted === undefined
      ? 'which runs only if you trust it'
      : `whose SHA-256 differs from the trusted one (${trusted})`
  throw createConfigError(
    `${model} needs code of its authors to render prompts, ${file}, ${found}: read it, then add ` +
      `--trust-model-code ${sha256}`,
  )
}

function chooseEncoder(
  directory: string,
  model: string,
  { hasTemplate, promptEncoder }: { hasTemplate: boolean; promptEncoder: string | undefined },
): string | undefined {
  const files = findPromptEncoders(directory)
  if (promptEncoder !== undefined) {
    if (files.includes(promptEncoder)) return promptEncoder
    throw createConfigError(
      `${model} has no prompt encoder ${promptEncoder}; it has ${files.join(', ') || 'none'}`,
    )
  }
  if (hasTemplate || files.length === 0) return undefined
  if (files.length === 1) return files[0]
  throw createConfigError(
    `${model} has several prompt encoders: name one of ${files.join(', ')} with --prompt-encoder`,
  )
}

/** Returns the paths of the prompt encoders in a model's folder. */
export function findPromptEncoders(directory: string): string[] {
  return FOLDERS.filter((folder) => existsSync(join(directory, folder)))
    .flatMap((folder) => readdirSync(join(directory, folder)).map((name) => folder + name))
    .filter(isPromptEncoder)
    .sort()
}

/**
 * Returns the digest that an option states, or that of the file it names.
 * @throws ProxyError `config_invalid` if neither
 */
function getTrustedDigest(trustModelCode: string): string {
  if (/^[0-9a-f]{64}$/i.test(trustModelCode)) return trustModelCode.toLowerCase()
  try {
    return hash('sha256', readFileSync(trustModelCode))
  } catch (cause) {
    throw new ProxyError(
      'config_invalid',
      `--trust-model-code must be a SHA-256 in hexadecimal or a file, but ${trustModelCode} is neither`,
      { cause },
    )
  }
}

function createConfigError(message: string): ProxyError {
  return new ProxyError('config_invalid', message)
}
