/** The jobs of the thread or process that renders prompts. */
import type { ChatTemplateFiles, MessageOrJson, RenderOptions } from '../templates/chat-template.ts'
import type { PromptRoles } from '../templates/prompt-format.ts'
import type { Specialization, TextPath } from '../templates/specialization.ts'
import type { TemplateWords } from '../templates/template-words.ts'
import type { BoundaryTokens } from './bridge.ts'
import type { NewPartReply, NewPartRequest, PartSpecialization, PromptEngine } from './prompt-engine.ts'
import type { Beginnings, PromptOptions } from './template-boundaries.ts'

/** The data of the thread or process. */
export interface PromptThreadConfig {
  template: ChatTemplateFiles
  tokens: BoundaryTokens
}

/** A call of a method of {@link PromptEngine}. */
export type PromptJob =
  | { kind: 'words' }
  | { kind: 'roles' }
  | { kind: 'beginnings'; options: PromptOptions }
  | { kind: 'render'; messages: readonly MessageOrJson[]; options: RenderOptions }
  | { kind: 'newPart'; request: NewPartRequest; options: PromptOptions }
  | {
      kind: 'specialize'
      messages: readonly MessageOrJson[]
      options: RenderOptions
      paths: readonly TextPath[]
    }
  | { kind: 'specializePart'; request: NewPartRequest; options: PromptOptions }

/** The result of a {@link PromptJob}. */
export type PromptReply =
  | TemplateWords
  | PromptRoles
  | Beginnings
  | string
  | NewPartReply
  | Specialization
  | PartSpecialization
  | undefined

/** Runs a job. @throws errors of {@link PromptEngine} */
export function runPromptJob(engine: PromptEngine, job: PromptJob): PromptReply {
  switch (job.kind) {
    case 'words':
      return engine.words
    case 'roles':
      return engine.roles
    case 'beginnings':
      return engine.getBeginnings(job.options)
    case 'render':
      return engine.render(job.messages, job.options)
    case 'newPart':
      return engine.renderNewPart(job.request, job.options)
    case 'specialize':
      return engine.specialize(job.messages, job.options, job.paths)
    case 'specializePart':
      return engine.specializePart(job.request, job.options)
  }
}
