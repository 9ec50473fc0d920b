/**
 * Downloads model files from the Hugging Face hub into the local cache. The cache has the layout of huggingface_hub
 * (`models--org--name/{refs,snapshots}`, see its guide "Understand caching"), so that the proxy and other tools share
 * their downloads.
 */
import { randomUUID } from 'node:crypto'
import { createWriteStream, existsSync, readFileSync } from 'node:fs'
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import type { ReadableStream } from 'node:stream/web'
import { ProxyError } from '../../../base/errors.ts'
import { TOKENIZER_FILES } from '../tokenizer/published-tokenizer.ts'
import { findPromptEncoders, isPromptEncoder } from './model-code.ts'

/** The supported environment variables of huggingface_hub. */
export interface HubEnvironment {
  HF_HUB_CACHE?: string | undefined
  HUGGINGFACE_HUB_CACHE?: string | undefined
  HF_HOME?: string | undefined
  XDG_CACHE_HOME?: string | undefined
  HF_ENDPOINT?: string | undefined
  HF_TOKEN?: string | undefined
  HF_HUB_OFFLINE?: string | undefined
}

/** The files of a model that token mode reads. Only a tokenizer is required. */
const WANTED_FILES: readonly string[] = [
  'tokenizer.json',
  'tokenizer_config.json',
  'chat_template.jinja',
  'chat_template.json',
  'config.json',
  'generation_config.json',
  'preprocessor_config.json',
  'processor_config.json',
]
/** The files of tokenizers in other formats, which are downloaded for a model without `tokenizer.json`. */
const PUBLISHED_FILES = ['tiktoken.model', 'tokenization_kimi.py', 'tekken.json']

/** The time limit for completing a partly cached model. After it, the proxy starts with the cached files. */
const COMPLETION_MS = 30_000

/** A directory with a model's files. */
interface ModelDirectory {
  directory: string
  /** The files that are missing from a partial cache, although the model may have them. */
  unlisted: string[]
}

/**
 * Returns the directory of a model's files, and downloads those that the cache does not contain, for example because
 * another tool omitted them. If the hub cannot be reached, a partial cache is used.
 * @param modelId `org/name` or `name`
 * @throws ProxyError `config_invalid` if the hub has no such model or denies access to it, `start_failed` if the hub
 *   cannot be reached
 */
export async function fetchModelDirectory(
  modelId: string,
  environment: HubEnvironment,
): Promise<ModelDirectory> {
  const repository = join(getCacheDirectory(environment), `models--${modelId.replaceAll('/', '--')}`)
  const cached = await findCachedSnapshot(repository)
  const unlisted = cached === undefined ? [] : listUnlistedFiles(repository, cached)
  const directory = cached && join(repository, 'snapshots', cached)
  if (directory !== undefined && unlisted.length === 0 && hasPromptSource(directory)) {
    return { directory, unlisted }
  }
  if (/^(1|true|yes|on)$/i.test(environment.HF_HUB_OFFLINE ?? '')) {
    if (directory !== undefined) return { directory, unlisted }
    throw new ProxyError('config_invalid', `${modelId} is not in ${repository}, and HF_HUB_OFFLINE is set`)
  }
  const endpoint = (environment.HF_ENDPOINT || 'https://huggingface.co').replace(/\/+$/, '')
  const download = new Download(modelId, repository, endpoint, {
    headers: environment.HF_TOKEN ? { authorization: `Bearer ${environment.HF_TOKEN}` } : {},
    ...(cached !== undefined && { signal: AbortSignal.timeout(COMPLETION_MS) }),
  })
  try {
    return { directory: await download.run(cached), unlisted: [] }
  } catch (error) {
    if (directory !== undefined) return { directory, unlisted: listUnlistedFiles(repository, cached!) }
    if (error instanceof ProxyError) throw error
    // The message mentions this machine, because a mistyped directory looks like a model id.
    const message = `there is no ${modelId} on this machine, and it cannot be downloaded from ${endpoint} into ${repository}`
    throw new ProxyError('start_failed', message, { cause: error })
  }
}

function getCacheDirectory(environment: HubEnvironment): string {
  const { HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME } = environment
  const home = HF_HOME ?? join(XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'huggingface')
  return HF_HUB_CACHE ?? HUGGINGFACE_HUB_CACHE ?? join(home, 'hub')
}

/** Finds the snapshot of the main branch in the cache. @returns its commit; undefined if it contains no tokenizer */
async function findCachedSnapshot(repository: string): Promise<string | undefined> {
  try {
    const commit = (await readFile(join(repository, 'refs', 'main'), 'utf8')).trim()
    const snapshot = join(repository, 'snapshots', commit)
    return TOKENIZER_FILES.some((file) => existsSync(join(snapshot, file))) ? commit : undefined
  } catch {
    return undefined
  }
}

/**
 * Returns the wanted files that the cache lists neither as present nor as absent. huggingface_hub marks a file as
 * absent from a revision with an empty file in `.no_exist` (`file_download.py`).
 */
function listUnlistedFiles(repository: string, commit: string): string[] {
  const isListed = (file: string) =>
    ['snapshots', '.no_exist'].some((folder) => existsSync(join(repository, folder, commit, file)))
  const hasTokenizerJson = existsSync(join(repository, 'snapshots', commit, 'tokenizer.json'))
  return listWantedFiles(hasTokenizerJson).filter((file) => !isListed(file))
}

function listWantedFiles(hasTokenizerJson: boolean): readonly string[] {
  return hasTokenizerJson ? WANTED_FILES : [...WANTED_FILES, ...PUBLISHED_FILES]
}

/** Returns whether a directory contains a template or an encoder. Downloads of other tools may lack the encoder. */
function hasPromptSource(directory: string): boolean {
  const isThere = (file: string) => existsSync(join(directory, file))
  return (
    isThere('chat_template.jinja') ||
    isThere('chat_template.json') ||
    findPromptEncoders(directory).length > 0 ||
    (isThere('tokenizer_config.json') &&
      readFileSync(join(directory, 'tokenizer_config.json'), 'utf8').includes('"chat_template"'))
  )
}

/** The fields of the hub's description of a revision that are used here. */
interface Revision {
  sha: string
  siblings: { rfilename: string }[]
}

/** The download of one model. */
class Download {
  readonly #modelId: string
  readonly #repository: string
  readonly #endpoint: string
  readonly #request: RequestInit

  constructor(modelId: string, repository: string, endpoint: string, request: RequestInit) {
    this.#modelId = modelId
    this.#repository = repository
    this.#endpoint = endpoint
    this.#request = request
  }

  /**
   * Downloads the missing files and returns the commit's directory. The reference is written last, so that it always
   * names a complete snapshot.
   * @param cached the commit of a snapshot to complete; default: the newest commit is downloaded
   */
  async run(cached?: string): Promise<string> {
    const revision = await this.#readRevision(cached ?? 'main')
    const directory = join(this.#repository, 'snapshots', revision.sha)
    const available = new Set(revision.siblings.map((sibling) => sibling.rfilename))
    if (!TOKENIZER_FILES.some((file) => available.has(file))) {
      throw new ProxyError(
        'config_invalid',
        `${this.#modelId} has none of ${TOKENIZER_FILES.join(', ')} on ${this.#endpoint}; token mode needs one of them`,
      )
    }
    await mkdir(directory, { recursive: true })
    const encoders = [...available].filter(
      (file) => isPromptEncoder(file) && !existsSync(join(directory, file)),
    )
    const wanted =
      cached === undefined
        ? listWantedFiles(available.has('tokenizer.json'))
        : listUnlistedFiles(this.#repository, cached)
    for (const file of new Set([...wanted, ...encoders])) {
      if (available.has(file)) await this.#downloadFile(revision.sha, file, join(directory, file))
      else await this.#markAbsent(revision.sha, file)
    }
    if (cached === undefined) await this.#writeReference(revision.sha)
    return directory
  }

  async #readRevision(name: string): Promise<Revision> {
    const response = await this.#get(`api/models/${this.#modelId}/revision/${name}`)
    const revision = (await response.json()) as Partial<Revision>
    const isRequested = name === 'main' || revision.sha === name
    // The commit is validated, because it becomes part of a path on this machine.
    if (!isRequested || !/^[0-9a-f]{40}$/.test(revision.sha ?? '') || !Array.isArray(revision.siblings)) {
      throw new ProxyError(
        'start_failed',
        `${this.#endpoint} returned an invalid description of ${this.#modelId}`,
      )
    }
    return revision as Revision
  }

  async #markAbsent(commit: string, file: string): Promise<void> {
    const folder = join(this.#repository, '.no_exist', commit)
    await mkdir(folder, { recursive: true })
    await writeFile(join(folder, file), '')
  }

  async #downloadFile(commit: string, file: string, path: string): Promise<void> {
    const response = await this.#get(`${this.#modelId}/resolve/${commit}/${file}`)
    await mkdir(dirname(path), { recursive: true })
    await replaceFile(path, async (partial) => {
      await pipeline(Readable.fromWeb(response.body as ReadableStream), createWriteStream(partial))
    })
  }

  async #writeReference(commit: string): Promise<void> {
    const path = join(this.#repository, 'refs', 'main')
    await mkdir(dirname(path), { recursive: true })
    await replaceFile(path, async (partial) => await writeFile(partial, commit))
  }

  async #get(path: string): Promise<Response> {
    const response = await fetch(`${this.#endpoint}/${path}`, this.#request)
    if (response.ok) return response
    await response.body?.cancel()
    const rejected = [401, 403, 404].includes(response.status)
    const hint = rejected ? '; if the model is private or gated, set HF_TOKEN' : ''
    throw new ProxyError(
      rejected ? 'config_invalid' : 'start_failed',
      `${this.#endpoint} responded with ${response.status} to ${path}${hint}`,
    )
  }
}

/** Writes a file atomically: other processes see either the previous or the complete new content. */
async function replaceFile(path: string, write: (partialPath: string) => Promise<void>): Promise<void> {
  const partial = `${path}.${randomUUID()}.incomplete`
  try {
    await write(partial)
    await rename(partial, path)
  } catch (error) {
    await rm(partial, { force: true })
    throw error
  }
}
