/** The thread that renders prompts: starts Python, then runs jobs one by one. */
import { workerData } from 'node:worker_threads'
import { ChatTemplate } from '../templates/chat-template.ts'
import { PythonTemplates } from '../templates/python/python-templates.ts'
import { serveJobs } from '../templates/python/thread-jobs.ts'
import { PromptEngine } from './prompt-engine.ts'
import { type PromptJob, type PromptReply, type PromptThreadConfig, runPromptJob } from './prompt-jobs.ts'

const { template, tokens } = workerData as PromptThreadConfig

void serveJobs<PythonTemplates, PromptJob, PromptReply>(
  () => PythonTemplates.start(),
  (python) => {
    const engine = new PromptEngine(new ChatTemplate(python, template), tokens)
    return (job) => runPromptJob(engine, job)
  },
)
