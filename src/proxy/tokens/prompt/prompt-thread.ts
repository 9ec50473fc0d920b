/** The thread that prompts are rendered on: starts Python, then answers one job after the other. */
import { parentPort, workerData } from 'node:worker_threads'
import { ProxyError } from '../../../base/errors.ts'
import {
  ChatTemplate,
  type ChatTemplateFiles,
  type MessageOrJson,
  type RenderOptions,
  TemplateExhausted,
} from '../templates/chat-template.ts'
import { PythonTemplates } from '../templates/python/python-templates.ts'
import type { TemplateWords } from '../templates/template-words.ts'
import type { BoundaryTokens } from './closing.ts'
import {
  type Beginnings,
  type NewPartAnswer,
  type NewPartRequest,
  PromptEngine,
  type PromptOptions,
} from './prompt-engine.ts'

export interface PromptThreadData {
  template: ChatTemplateFiles
  tokens: BoundaryTokens
  /** Python may have this much, its own 40 MB included. */
  maxMemoryBytes: number
}

export type PromptJob =
  | { kind: 'words' }
  | { kind: 'beginnings'; options: PromptOptions }
  | { kind: 'render'; messages: readonly MessageOrJson[]; options: RenderOptions }
  | { kind: 'newPart'; request: NewPartRequest; options: PromptOptions }

export type PromptAnswer = TemplateWords | Beginnings | string | NewPartAnswer

/** What works from now on, the one before the other. */
export interface PromptProgress {
  works: 'python' | 'template'
}

export type PromptReply =
  | { answer: PromptAnswer }
  /** The fields of a {@link ProxyError}. */
  | { error: { code: ProxyError['code']; message: string; param: string | undefined } }
  /** There was not enough memory; the thread is of no use any more. */
  | { exhausted: true }

const port = parentPort!
const { template, tokens, maxMemoryBytes } = workerData as PromptThreadData
limitMemory(maxMemoryBytes)

void serve()

/** Says what works, or why it does not. */
async function serve(): Promise<void> {
  const python = await PythonTemplates.start()
  say({ works: 'python' })
  try {
    const engine = new PromptEngine(new ChatTemplate(python, template), tokens)
    port.on('message', (job: PromptJob) => say(replyTo(engine, job)))
    say({ works: 'template' })
  } catch (error) {
    say(replyOf(error))
  }
}

function say(reply: PromptProgress | PromptReply): void {
  port.postMessage(reply)
}

function run(engine: PromptEngine, job: PromptJob): PromptAnswer {
  switch (job.kind) {
    case 'words':
      return engine.words
    case 'beginnings':
      return engine.beginnings(job.options)
    case 'render':
      return engine.render(job.messages, job.options)
    case 'newPart':
      return engine.newPart(job.request, job.options)
  }
}

function replyTo(engine: PromptEngine, job: PromptJob): PromptReply {
  try {
    return { answer: run(engine, job) }
  } catch (error) {
    return replyOf(error)
  }
}

/** @throws what is no answer to a job */
function replyOf(error: unknown): PromptReply {
  if (error instanceof TemplateExhausted) return { exhausted: true }
  if (!(error instanceof ProxyError)) throw error
  const { code, message, param } = error
  return { error: { code, message, param } }
}

/** WebAssembly's memory grows through this; Emscripten takes a failure for a lack of memory, and Python raises its error. */
function limitMemory(maxBytes: number): void {
  const { prototype } = (globalThis as unknown as { WebAssembly: { Memory: { prototype: GrowingMemory } } })
    .WebAssembly.Memory
  const grow = prototype.grow
  prototype.grow = function (pages) {
    if (this.buffer.byteLength + pages * PAGE_BYTES > maxBytes) throw new RangeError('too much memory')
    return grow.call(this, pages)
  }
}

/** Node's types have no WebAssembly, which is a part of the browser's. */
interface GrowingMemory {
  readonly buffer: ArrayBuffer
  grow(this: GrowingMemory, pages: number): number
}

/** Of WebAssembly. */
const PAGE_BYTES = 65_536
