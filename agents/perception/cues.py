# ruff: noqa: E501 - one rule a line
"""The rules of the tagger: what prompts of each task type tend to contain, with a weight for each sign.

Weights are on one scale: 1 is a weak sign, 2 a clear one, 4 a strong one, 6 a command ("summarize this dialogue" is a summary, whatever the
text looks like). People put commands at the very beginning or end, and the text that a command is about must not count like a command. A
rule with `words` needs one of them as a whole word; one with `pattern` needs a match in the lower-cased text; one with both needs both, and
the words are looked up first because that is cheap. Patterns repeat only bounded or simple parts, so none backtracks without bound.
"""

from dataclasses import dataclass
from enum import StrEnum

from hmas.controller.core.types import TaskType as T


class Where(StrEnum):
    """The part of the excerpt that a rule looks at: its beginning, its end, both, or all of it."""

    OPEN = "open"
    CLOSE = "close"
    ASK = "ask"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Cue:
    """One rule: a match in `where` counts for `task` with `weight`.

    Attributes:
        numbers: Fewest numbers required anywhere in the text.
        other_scripts: Whether the rule is skipped for plain ASCII text.
    """

    task: T
    weight: float
    where: Where
    words: str = ""
    pattern: str = ""
    numbers: int = 0
    other_scripts: bool = False


_OPEN, _CLOSE, _ASK, _ANY = Where.OPEN, Where.CLOSE, Where.ASK, Where.ANY

_LANGUAGE_WORDS = (
    "english french german spanish italian portuguese dutch russian ukrainian polish czech icelandic swedish danish norwegian finnish greek "
    "turkish arabic hebrew hindi bengali urdu tamil thai vietnamese indonesian malay japanese korean chinese mandarin cantonese latin "
    "hungarian romanian bulgarian serbian croatian swahili persian farsi"
)
_LANGUAGE = "(?:" + _LANGUAGE_WORDS.replace(" ", "|") + ")"
_CODE_WORDS = (
    "python java javascript typescript js c++ c# golang rust ruby php swift kotlin scala perl bash shell powershell sql html css matlab lua "
    "haskell dart react vue angular nodejs django flask docker kubernetes terraform pandas numpy pytorch excel vba regex mysql postgres "
    "linux arduino unity pygame svelte nextjs"
)
_WRITE_WORDS = "write writing draft compose create generate prepare craft pen make produce"
_WRITE = "(?:" + _WRITE_WORDS.replace(" ", "|") + ")"
_BUILD = "(?:write|implement|develop|build|design|create|generate|code|construct|complete|refactor|debug|optimi[sz]e|define|make|give me)"
NUMBER_WORDS = (
    "one two three four five six seven eight nine ten eleven twelve dozen fifteen twenty thirty fifty hundred half twice double triple "
    "thrice third quarter"
)
"""Words that count as a number."""
_HOW_MANY = r"how (?:many|much|long|far|old|tall|fast|big|heavy|high|deep|wide)\b"

CUES: tuple[Cue, ...] = (
    Cue(T.QA, 3.0, _ASK, "question", r"(?:^|\n|\[)\s*(?:question|q)\]?\s*:|answer (?:the|this|my)|(?:following|this|the) question"),
    Cue(T.QA, 2.0, _CLOSE, "answer", r"answer\W{0,3}$|the answer is|correct answer|answer (?:this|the)"),
    Cue(T.QA, 3.0, _ANY, "choices options option pick choose select", r"choices|options?\W{0,3}(?:are|:)|(?:pick|choose|select) (?:one|the|from|between|your|an?) "),
    Cue(T.QA, 3.0, _ANY, "", r"(?:^|\n)\s*(?:\(?a[).:]).{0,160}\n\s*\(?b[).:]"),
    Cue(T.QA, 2.0, _CLOSE, "", r"\n\s*[-*] .{1,80}\n\s*[-*] .{1,80}\n\s*[-*] .{1,80}$"),
    Cue(T.QA, 3.0, _ASK, "true false yes multiple which best correct", r"true or false|yes or no|multiple[- ]choice|which of (?:the following|these)|(?:best|correct) answer"),
    Cue(T.QA, 1.5, _ANY, "context passage paragraph background fact facts hint document article", r"(?:context|passage|paragraph|background|facts?(?: \d)?|hint|document|article)\s*:"),
    Cue(T.QA, 2.0, _ASK, "according based given using from in", r"(?:according to|based on|given|using|from|in) (?:the|this|these|that|above|following)[\w ]{0,20}(?:context|passage|paragraph|facts?|article|information|background|hint)"),
    Cue(T.QA, 2.0, _OPEN, "", r"^\s*(?:who|when|where|which|what|is|are|was|were|do|does|did|can|has|have)\b[^\n]{3,60}\?\s*$"),
    Cue(T.QA, 1.0, _ASK, "", r"(?:^|\n)\s*(?:who|whom|whose|when|where|which|what|why|how)\b"),
    Cue(T.QA, 1.0, _CLOSE, "", r"\?[\"')\]\s]{0,4}$"),
    Cue(T.QA, 2.0, _ANY, "", r"请回答|谁是|什么是|何时|哪里|とは何|誰が|いつ", other_scripts=True),
    Cue(T.DIALOGUE, 5.0, _CLOSE, "assistant ai bot agent chatgpt", r"(?:^|\n)\s*(?:assistant|ai|bot|agent|chatgpt)\s*:\s*$"),
    Cue(T.DIALOGUE, 2.5, _ANY, "user human customer client caller", r"(?:^|\n)\s*(?:user|human|customer|client|caller)\s*:"),
    Cue(T.DIALOGUE, 3.0, _ASK, "conversation dialogue dialog listener speaker"),
    Cue(T.DIALOGUE, 5.5, _ASK, "conversation dialogue dialog", _WRITE + r"\b(?:(?!summar|following|this |the |above)[^\n.]){0,40}\b(?:conversation|dialog)"),
    Cue(T.DIALOGUE, 1.0, _ANY, "", r"(?:^|\n)\s*[\w#]{1,12}\s*:\s.{1,160}\n\s*[\w#]{1,12}\s*:\s.{1,160}\n\s*[\w#]{1,12}\s*:\s"),
    Cue(T.DIALOGUE, 4.0, _OPEN, "you to be yourself", r"^\W{0,3}(?:imagine|pretend|suppose|let's say|assume)(?: that)? (?:you|yourself|to be)|^\W{0,3}you(?:'re| are) (?:an?|the|now|in|on) "),
    Cue(T.DIALOGUE, 4.0, _OPEN, "act roleplay role character perspective", r"act as|role-?play|take on the role|(?:play|assume) the (?:role|part)|in character|from the perspective of"),
    Cue(T.DIALOGUE, 3.0, _OPEN, "as role identity persona", r"^\W{0,3}(?:as|assume the (?:role|identity|persona) of) (?:an?|the) [^\n]{3,80},"),
    Cue(T.DIALOGUE, 2.5, _OPEN, "hi hello hey good thanks thank", r"^\W{0,3}(?:hi|hello|hey|good (?:morning|afternoon|evening)|thanks|thank you)\b"),
    Cue(T.DIALOGUE, 3.0, _OPEN, "", r"你好|扮演|聊天|こんにちは|になりきって", other_scripts=True),
    Cue(T.TRANSLATION, 6.0, _ASK, "translate translation translated translating", r"(?:to|into|from|in)\b[^\n]{0,30}\b" + _LANGUAGE),
    Cue(T.TRANSLATION, 6.0, _ASK, "version translation rendering equivalent", _LANGUAGE + r" (?:version|translation|rendering|equivalent)"),
    Cue(T.TRANSLATION, 6.0, _ASK, _LANGUAGE_WORDS, r"from " + _LANGUAGE + r" (?:in)?to " + _LANGUAGE + r"|how (?:do|would) (?:you|i) say\b|(?:say|put|render) (?:this|that|it|the following)[\w ]{0,20} in " + _LANGUAGE),
    Cue(T.TRANSLATION, 6.0, _CLOSE, _LANGUAGE_WORDS, r"\n\s*" + _LANGUAGE + r"\s*:\s*$"),
    Cue(T.TRANSLATION, 3.0, _OPEN, "translate", r"^\W{0,3}(?:please )?translate"),
    Cue(T.TRANSLATION, 6.0, _ASK, "übersetze übersetzen traduis traduisez traduire traduce traduzca traducir traduci traduza"),
    Cue(T.TRANSLATION, 6.0, _ASK, "", r"翻译|译成|訳して|翻訳|번역|переведи", other_scripts=True),
    Cue(T.EXTRACTION, 5.0, _ASK, "extract extracting extracted pull pick", r"(?:^|\n|[.,:;]\s|and |to |please )(?:extract|pull out|pick out)\b|extract(?:ing|ed)? (?:the|all|each|every|any|an?) "),
    Cue(T.EXTRACTION, 5.0, _ASK, "entity entities names dates places organizations organisations numbers addresses keywords people", r"named entit|(?:every|each|all|the) entit(?:y|ies)|(?:list|find|identify|mark|tag|name) (?:all |every |each )?(?:of )?(?:the )?(?:named |people|persons|entities|names|dates|places|organi[sz]ations|phone numbers|addresses|keywords)"),
    Cue(T.EXTRACTION, 4.0, _ASK, "details fields attributes values", r"(?:give|list|find|get|fill in|provide) (?:the |all )?(?:details?|fields?|attributes?|values?) (?:on|of|for|from|in|about)"),
    Cue(T.EXTRACTION, 4.0, _ASK, "answerable unanswerable answer", r"can't answer|n[o']t answerable|unanswerable"),
    Cue(T.EXTRACTION, 4.0, _ASK, "where contains answer", r"(?:contains?|find|locate) the answer|answer[\w ,:'\"]{0,30}(?:in|from) the (?:text|context|following)|the answer to the question .{0,160} is in"),
    Cue(T.EXTRACTION, 2.5, _ASK, "json structured table csv spreadsheet", r"(?:as|in|into|return|output) (?:a )?(?:valid )?json|structured (?:data|format|output)|into a (?:table|csv|spreadsheet)"),
    Cue(T.EXTRACTION, 3.0, _ASK, "phrase span exact", r"word or phrase|span of text|exact (?:words?|phrase|text)|phrase (?:from|in) the"),
    Cue(T.EXTRACTION, 5.0, _ASK, "", r"提取|抽取|找出(?:文中|下文)|抜き出し|抽出", other_scripts=True),
    Cue(T.PARAPHRASING, 6.0, _ASK, "paraphrase paraphrases paraphrased paraphrasing rephrase rephrased rephrasing reword reworded rewording"),
    Cue(T.PARAPHRASING, 5.0, _ASK, "rewrite rewriting rewritten re-write"),
    Cue(T.PARAPHRASING, 6.0, _ASK, "same differently words way", r"means? (?:exactly )?the same|same meaning|say (?:this|it|that) differently|in other words|another way (?:to|of) say"),
    Cue(T.PARAPHRASING, 4.0, _ASK, "proofread polish improve fix correct edit simplify refine", r"(?:proof-?read|polish|improve|fix|correct|edit|simplify|refine)\b[^\n]{0,40}\b(?:text|sentences?|paragraph|grammar|wording|writing|passage|spelling|tone)"),
    Cue(T.PARAPHRASING, 6.0, _ASK, "", r"改写|润色|重写|换一种说法|言い換え|書き直", other_scripts=True),
    Cue(T.CODE_GENERATION, 3.0, _ANY, "", r"```"),
    Cue(T.CODE_GENERATION, 4.0, _ASK, _CODE_WORDS),
    Cue(T.CODE_GENERATION, 5.0, _ASK, "function functions program programs script scripts class code query algorithm app application api endpoint component method website bot", _BUILD + r"(?: [\w'-]+){0,5}? (?:functions?|programs?|scripts?|class(?:es)?|code|query|algorithm|app|application|api|endpoint|component|method|website|bot)\b"),
    Cue(T.CODE_GENERATION, 3.0, _ANY, "def import class include namespace public fn func function const let var select return elif println printf std", r"(?:^|\n)\s*(?:def \w+\(|class \w+\s*[:({]|import \w|from \w+ import|#include|using namespace|public (?:class|static)|fn \w+\(|func \w+\(|function \w*\(|(?:const|let|var) \w+ ?=|select [\w*, ]+ from)|return \w+;|printf?\("),
    Cue(T.CODE_GENERATION, 3.0, _ANY, "traceback stacktrace syntaxerror typeerror valueerror nullpointerexception segfault compiler npm pip stdout stderr localhost github codebase runtime backend frontend"),
    Cue(T.CODE_GENERATION, 2.5, _ANY, "", r"[{};]\s*\n[^\n]{0,120}[{};]\s*\n|=>\s*[{(]|<\?php|<!doctype|<html|</\w+>\s*\n"),
    Cue(T.CODE_GENERATION, 5.0, _ASK, "", r"(?:写|编写|实现)[^\n]{0,20}(?:代码|函数|程序|脚本)|コードを|プログラムを|код на", other_scripts=True),
    Cue(T.INSTRUCTION_FOLLOWING, 2.5, _ASK, "not don't without avoid refrain", r"(?:do not|don't|without|avoid|refrain from) (?:us(?:e|ing)|includ(?:e|ing)|contain(?:ing)?|mention(?:ing)?|say(?:ing)?)"),
    Cue(T.INSTRUCTION_FOLLOWING, 3.5, _ASK, "response reply output letter title paragraph", r"(?:your (?:entire |whole |final )?(?:response|answer|reply|output)|the (?:response|output|letter|title)) (?:should|must|needs? to|has to|contains?)"),
    Cue(T.INSTRUCTION_FOLLOWING, 3.5, _ASK, "lowercase uppercase capital capitals caps commas comma placeholders placeholder markdown postscript highlight angular quotation bullet bullets json letter", r"lower ?case|all (?:in )?(?:capital|upper)|capital letters|in all caps|commas?|placeholders?|in markdown|postscript|highlight at least|double (?:angular|quotation)|(?:\d|two|three|four|five|exactly|at least|bullet) ?bullet|bullet points?|letter \w\b"),
    Cue(T.INSTRUCTION_FOLLOWING, 3.5, _ASK, "least most exactly less more fewer", r"(?:at least|at most|exactly|less than|more than|no more than|fewer than) (?:[\w-]+ )?(?:words?|sentences?|paragraphs?|sections?|times|lines?|items?|highlighted)"),
    Cue(T.INSTRUCTION_FOLLOWING, 4.0, _ASK, "conditions constraints requirements criteria rules satisfy satisfies requirement", r"following (?:conditions?|constraints?|criteria|rules)|satisf(?:y|ies) (?:all|the)|all of the"),
    Cue(T.INSTRUCTION_FOLLOWING, 3.0, _ANY, "output", r"(?:input|example|text|sentence)\s*\d*\s*:[^\n]{0,200}\n+\s*(?:output|answer|label)\s*\d*\s*:"),
    Cue(T.INSTRUCTION_FOLLOWING, 5.0, _ASK, "concepts concept keywords ideas", r"(?:concepts?|keywords?|ideas)\b[\s\S]{0,120}\bsentence|sentence\b[\s\S]{0,120}\b(?:concepts?|keywords?|ideas)|(?:key|list of|these|all the) concepts"),
    Cue(T.INSTRUCTION_FOLLOWING, 3.0, _ASK, "sentence sentences", r"(?:write|make|create|generate|form|compose|put together) (?:a|one|two|\d+)(?: \w+){0,2} sentences?\b"),
    Cue(T.INSTRUCTION_FOLLOWING, 2.5, _OPEN, "suggest brainstorm recommend classify categorize categorise sort order rank rate label list come provide name fill match predict convert decide determine tell think find identify design plan offer evaluate propose detect give describe could would", r"^\W{0,3}(?:please |can you |could you |i want you to |you need to |you should )?(?:suggest|brainstorm|recommend|classify|categori[sz]e|sort|order|rank|rate|label|give|list|come up|provide|name|fill|match|predict|convert|decide|determine|tell|think of|find|identify|design|plan|offer|evaluate|propose|detect|describe|could you|would you|if you could|i would)\b"),
    Cue(T.INSTRUCTION_FOLLOWING, 1.0, _OPEN, "", r"^\W{0,3}(?:please )?(?:write|explain|generate|answer|use|add|change|compare|put|start|complete|do|make|create|given|consider|you)\b"),
    Cue(T.INSTRUCTION_FOLLOWING, 2.0, _ASK, "tweet tweets slogan tagline hashtag hashtags haiku limerick riddle rap joke jokes pun resume itinerary recipe advertisement caption poem lyrics song acronym"),
    Cue(T.INSTRUCTION_FOLLOWING, 2.5, _ASK, "", r"请(?:列出|推荐|按照|给出)|不要使用|字以内", other_scripts=True),
    Cue(T.SUMMARIZATION, 6.0, _ASK, "summarize summarise summarizes summarized summarizing summarising summary summaries tldr tl synopsis abstract recap", r"summar[yi]|tl ?; ?dr|tldr|synopsis|recap|abstract (?:of|for)|short abstract"),
    Cue(T.SUMMARIZATION, 5.0, _ASK, "condense distill distil synthesize shorten boils boil sum nutshell gist takeaways highlights briefly", r"condense|distill?|synthesi[sz]e|shorten|boils? down|sum (?:it|this|the|up|in)|to sum|nutshell|gist|takeaways|highlights|briefly (?:describe|explain|state|sum)"),
    Cue(T.SUMMARIZATION, 4.0, _ASK, "few words sentence sentences points", r"in (?:a few|one|two|three|fewer|brief|short|around \d+|less than \d+)(?: [\w-]+){0,2} ?(?:words?|sentences?|points?)"),
    Cue(T.SUMMARIZATION, 4.0, _ASK, "key main important essential central outline about", r"(?:key|main|important|essential|central) (?:points?|ideas?|takeaways?|facts|arguments?|message|topics?|story)|outline of (?:the|this)|main story|what (?:are|is|was) (?:the|this)[\w ]{0,24} about"),
    Cue(T.SUMMARIZATION, 4.0, _ASK, "roommate version headline title", r"college roommate|short(?:er)? version of|(?:headline|title) (?:for|of) (?:the|this)"),
    Cue(T.SUMMARIZATION, 6.0, _ASK, "", r"总结|摘要|概括|要約|まとめて|요약", other_scripts=True),
    Cue(T.LETTER_DRAFTING, 5.5, _ASK, "letter letters email emails e-mail mail memo memorandum invitation newsletter", r"(?:" + _WRITE + r"|send|reply to|respond to|need)\b[^\n.]{0,60}\b(?:letters?|e-?mails?|memo|memorandum|invitation|newsletter)\b"),
    Cue(T.LETTER_DRAFTING, 2.0, _ASK, "dear sincerely faithfully resignation", r"dear |yours |resignation letter"),
    Cue(T.LETTER_DRAFTING, 5.5, _ASK, "", r"写(?:一?封|个)?[^\n]{0,12}(?:信|邮件|函)|メールを(?:書|作)|手紙を", other_scripts=True),
    Cue(T.MATH_REASONING, 1.0, _CLOSE, "how", _HOW_MANY + r"[^?\n]{0,200}\?\s*$"),
    Cue(T.MATH_REASONING, 5.0, _CLOSE, "how", _HOW_MANY + r"[^?]{0,240}(?:\?|\.)\s*$", numbers=2),
    Cue(T.MATH_REASONING, 5.0, _CLOSE, "what", r"what(?:'s| is| was| will be| are| would be| were) (?:the|his|her|their|its)\b[^?\n]{0,80}(?:total|costs?|price|number|amount|average|sum|profit|age|percentage|speed|length|weight|area|ratio|difference|dollars|score|value|height|distance|rate)", numbers=2),
    Cue(T.MATH_REASONING, 5.0, _CLOSE, "calculate compute find determine estimate", r"(?:calculate|compute|find|determine|estimate) (?:the|how|its|his|her|their)\b", numbers=2),
    Cue(T.MATH_REASONING, 2.5, _CLOSE, "what find determine if", r"(?:what|find|determine|if)\b[^?]{0,240}\?\s*$", numbers=4),
    Cue(T.MATH_REASONING, 4.0, _ASK, "prove proof theorem lemma integral derivative eigenvalue eigenvector polynomial matrix matrices quadratic logarithm arithmetic algebra geometry probability permutation modulo hypotenuse perimeter radius congruent factorial equation equations"),
    Cue(T.MATH_REASONING, 4.0, _ASK, "solve calculate compute evaluate simplify differentiate integrate derive factorize factorise factor", r"(?:solve|calculate|compute|evaluate|simplify|differentiate|integrate|derive|factori[sz]e)\b[^\n]{0,60}(?:\d|[=+^]|equation|for x\b|expression)"),
    Cue(T.MATH_REASONING, 4.0, _ANY, "", r"\\\(|\\(?:frac|text\w*|sum|int|sqrt|begin|mathbb|leq|geq|cdot|infty|alpha|theta|pi)\b|\$[^$\n]{1,60}[\^_=\\]|[∫∑√≤≥∞∀∃∈π]"),
    Cue(T.MATH_REASONING, 3.0, _ASK, "", r"\b[a-z]\s?=\s?-?\d|\d\s?[-+*/×÷^]\s?\d+\s?="),
    Cue(T.MATH_REASONING, 4.0, _ASK, "", r"证明|计算|求(?:解|出|值)|方程|積分|数学|概率|докажите|решите|вычисли", other_scripts=True),
    Cue(T.ESSAY_GENERATION, 7.0, _ASK, "essay essays", _WRITE + r"\b[^\n.]{0,60}\bessays?\b|(?:argumentative|persuasive|expository|opinion|narrative)[\w ,-]{0,30} essay"),
    Cue(T.ESSAY_GENERATION, 3.0, _ASK, "essay essays thesis counterarguments op-ed"),
    Cue(T.ESSAY_GENERATION, 6.0, _ASK, "", r"作文|议论文|小論文|написать эссе|напиши эссе", other_scripts=True),
    Cue(T.LONG_FORM_GENERATION, 5.0, _ASK, "story stories novel novella screenplay script chapter fanfic fanfiction tale fable saga plot scene monologue adventure campaign backstory lore narrative storyline", r"(?:" + _WRITE + r"|tell|continue|develop|build|invent|expand|imagine|come up with)\b[^\n.]{0,80}\b(?:stor(?:y|ies)|novel|novella|screenplay|script|chapter|fan ?fic\w*|tale|fable|saga|plot|scene|monologue|adventure|campaign|backstory|lore|narrative)\b|storyline"),
    Cue(T.LONG_FORM_GENERATION, 5.0, _ASK, "continuation continue spin-off prequel sequel movie", r"continuation of|continue (?:the|this|my)[\w ]{0,20}(?:story|text|novel|chapter)|movie plot|prequel|sequel"),
    Cue(T.LONG_FORM_GENERATION, 5.0, _ASK, "article articles blog guide tutorial handbook book manual biography speech lecture", r"(?:" + _WRITE + r"|expand|develop)\b(?:(?!following|this |these |the |above)[^\n.]){0,60}\b(?:articles?|blog(?: post)?|guide|tutorial|handbook|book|manual|biography|speech|lecture)\b"),
    Cue(T.LONG_FORM_GENERATION, 4.0, _ASK, "highlights expand expanded exciting plausible", r"expand(?:ed)?\b[^\n]{0,40}(?:article|story|into|from)|plausible details|from (?:the )?(?:following |these )?(?:highlights|key plot points|key points)|following highlights|more exciting"),
    Cue(T.LONG_FORM_GENERATION, 3.5, _ANY, "words word", r"(?:no (?:shorter|fewer|less) than|at least|approximately|about|around|over|in) (?:\d{4,}|[1-9],\d{3}|[5-9]\d\d) words|(?:\d{4,}|[1-9],\d{3})[- ]words?"),
    Cue(T.LONG_FORM_GENERATION, 2.0, _ASK, "protagonist villain fantasy sci-fi fiction characters dungeons d&d poem anime"),
    Cue(T.LONG_FORM_GENERATION, 5.0, _ASK, "", r"小说|故事|剧本|续写|[两三五六七八九]千字|\d{4,}字|小説|物語|рассказ|geschichte", other_scripts=True),
    Cue(T.RESEARCH_AND_COMMUNICATION, 5.0, _ASK, "research literature systematic market report bibliography feasibility", r"research (?:for me|report|paper|proposal|the|on|into)|literature review|systematic review|market (?:research|analysis|study)|lab report|annotated bibliography|feasibility"),
    Cue(T.RESEARCH_AND_COMMUNICATION, 4.0, _ASK, "analysis report review study overview comparison investigation survey proposal dissertation", r"(?:in-depth|comprehensive|detailed|thorough|comparative|critical|write|make|prepare|produce|provide)\b[^\n.]{0,30}\b(?:analysis|report|review|study|overview|comparison|investigation|survey|proposal|dissertation)\b"),
    Cue(T.RESEARCH_AND_COMMUNICATION, 2.0, _ASK, "references citations cite cited sources peer-reviewed scholarly academic evidence"),
    Cue(T.RESEARCH_AND_COMMUNICATION, 1.5, _ASK, "analyze analyse compare contrast assess investigate examine discuss implications impact impacts effects advantages disadvantages role influence difference differences strategy strategies trends regulations guidelines treatment diagnosis patient patients legal law policy methods method techniques theory theories practices considerations standards process factors"),
    Cue(T.RESEARCH_AND_COMMUNICATION, 3.0, _OPEN, "", r"^\s*(?:what|how|why|which|in|is|are|can|could|should|does|do|if|when|where|who|explain|describe|discuss)\b[^\n]{60,600}[?.]\s*$"),
    Cue(T.RESEARCH_AND_COMMUNICATION, 5.0, _ASK, "", r"研究|调研|收集整理|分析报告|综述|学术|论证|調査|レポート", other_scripts=True),
)  # fmt: skip
