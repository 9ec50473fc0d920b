/** The thread that renders prompts: starts Python, then runs one job after the other. */
import { workerData } from 'node:worker_threads'
import {
  ChatTemplate,
  type ChatTemplateFiles,
  type MessageOrJson,
  type RenderOptions,
} from '../templates/chat-template.ts'
import { PythonTemplates } from '../templates/python/python-templates.ts'
import { serveJobs } from '../templates/python/thread-jobs.ts'
import type { TemplateWords } from '../templates/template-words.ts'
import type { BoundaryTokens } from './bridge.ts'
import {
  type Beginnings,
  type NewPartReply,
  type NewPartRequest,
  PromptEngine,
  type PromptOptions,
} from './prompt-engine.ts'

export interface PromptThreadData {
  template: ChatTemplateFiles
  tokens: BoundaryTokens
}

export type PromptJob =
  | { kind: 'words' }
  | { kind: 'beginnings'; options: PromptOptions }
  | { kind: 'render'; messages: readonly MessageOrJson[]; options: RenderOptions }
  | { kind: 'newPart'; request: NewPartRequest; options: PromptOptions }

export type PromptReply = TemplateWords | Beginnings | string | NewPartReply

const { template, tokens } = workerData as PromptThreadData

void serveJobs<PythonTemplates, PromptJob, PromptReply>(PythonTemplates.start, (python) => {
  const engine = new PromptEngine(new ChatTemplate(python, template), tokens)
  return (job) => run(engine, job)
})

function run(engine: PromptEngine, job: PromptJob): PromptReply {
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
