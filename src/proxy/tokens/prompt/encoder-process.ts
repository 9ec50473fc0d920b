/** The confined process that renders prompts with a model's own encoder: starts Python, then runs jobs one by one. */
import { ChatTemplate, type ChatTemplateFiles } from '../templates/chat-template.ts'
import { confine, openConfinedPort } from '../templates/python/confinement.ts'
import { PythonTemplates } from '../templates/python/python-templates.ts'
import { serveJobs } from '../templates/python/thread-jobs.ts'
import type { BoundaryTokens } from './bridge.ts'
import { PromptEngine } from './prompt-engine.ts'
import { type PromptJob, type PromptReply, runPromptJob } from './prompt-jobs.ts'

/** A `PromptThreadConfig` with arrays in place of maps and sets, which JSON cannot represent. */
export interface EncoderProcessConfig {
  template: ChatTemplateFiles
  tokens: { ids: [text: string, id: number][]; eosIds: number[] }
}

confine()
openConfinedPort<EncoderProcessConfig>(({ template, tokens, pyodideFolder }, port) => {
  const boundaries: BoundaryTokens = { ids: new Map(tokens.ids), eosIds: new Set(tokens.eosIds) }
  void serveJobs<PythonTemplates, PromptJob, PromptReply>(
    () => PythonTemplates.start(pyodideFolder),
    (python) => {
      const engine = new PromptEngine(new ChatTemplate(python, template), boundaries)
      return (job) => runPromptJob(engine, withDate(job))
    },
    port,
  )
})

/** Returns the job with its date, which JSON represents as a text, as a `Date`. */
function withDate(job: PromptJob): PromptJob {
  if (job.kind === 'words' || job.kind === 'roles' || job.options.now === undefined) return job
  return { ...job, options: { ...job.options, now: new Date(job.options.now) } }
}
