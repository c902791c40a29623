"""Words by which the sentence splitter knows whether a full stop ends a sentence; English, German, French, Spanish, Czech.

Words in lower case are known in any case, others as they are written here and in capitals.
"""

from __future__ import annotations


def _words(*texts: str) -> frozenset[str]:
    return frozenset(" ".join(texts).split())


# A name, an example or an amount follows: Dr. Müller, e.g. this.
NEVER_LAST = _words(
    "mr mrs ms messrs dr drs prof profa med vs approx cf viz e.g i.e a.k.a p.s Rev Hon Fr Gen Col Maj Capt Cpt Cmdr Lt Sgt",
    "Cpl Pvt Adm Gov Sen Rep Pres Mt Ft bzw ca z.b d.h vgl ggf evtl inkl exkl sog geb gest verh hl einschl insb insbes Hr Hrn",
    "Frl Ing Univ MM mme mmes mlle mlles Mgr Pr env av p.ex c.-à-d bd boul sres srta dra Dña Lic Arq Avda p.ej aprox např tzv",
    "tj tzn mj resp popř příp cca zn sv nám ul bc mudr judr phdr rndr plk kpt mjr им ул т.е т.н engl griech ital russ dt bspw",
    "zzgl abzgl ehem entspr")
# A number follows: No. 5, p. 12, Jan. 5.
BEFORE_NUMBER = _words(
    "no nos nr rt pp vol vols fig figs ch chs sec pt art arts tel ext Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon",
    "Tue Tues Wed Thu Thur Thurs Fri Sat Sun Abb Abs Bd Kap Tab Kl Anm eq eqs Str Okt Dez janv févr avr juil sept déc Di Mi",
    "Do Sa So Mo chap éd tél réf núm pág págs cap máx mín max min č čís str obr odst tab")
# A sentence ends here only before a word of `OPENERS`: St. Mary's, Acme Inc. announced. Initials and U.S. are of this kind.
SELDOM_LAST = _words(
    "st ste jr sr sra inc ltd corp bros dept al Co tis mil mld Mio Mrd Tsd Chr Fa Hrsg Aufl Ud Uds Vd Vds EE FF Cía Sta Sto",
    "franz Verf Vors govt assoc")
# A sentence may end here, but not before a small letter: etc., 5 p.m., max. speed.
OFTEN_LAST = _words(
    "etc a.m p.m incl excl ave blvd rd hwy misc UU usw usf dgl Jh Jhd ff Std Min Sek dép depto EE.UU hod tel temp atd apod aj",
    "r.o n.l др пр т.д т.п г гг max min máx mín ext abbr adj orig")
# Words that begin sentences, and seldom names.
OPENERS = _words(
    "the it he she they we you i this that these those there here what who where when why how which whose is are was",
    "were do does did can could would should have has had if at but and or then now my your his her its our their not yes",
    "please let some many most after before for from with to in on as everyone nobody nothing today tomorrow yesterday",
    "der die das er sie es wir ich ihr du wer wie wo wann warum welche welcher ist sind war waren hat haben kann und aber",
    "oder dann danach dort da hier heute morgen gestern mein meine sein seine unser unsere nicht ja nein ein eine im am bei",
    "mit für auch viele alle man wenn weil als nach vor sein dies diese dieser dieses was",
    "les il elle ils elles nous vous je tu c' j' qu' n' ce cette ces cela ça mais et dans pour quand pourquoi comment est",
    "mon ma mes son sa ses notre votre leur une des qui que où oui non si",
    "me se te no ella ellos ellas nosotros yo tú esto esta este eso pero y cuando donde dónde qué quién cómo hay mi su sus",
    "un una uno los las",
    "on ona oni ono my vy já ty to ten ta ti kdo co kde kdy proč jak ale a nebo pak potom tam tady dnes zítra včera můj",
    "moje jeho její náš ano ne když byl byla bylo byli je jsou",
    "он она оно они мы вы я ты это но и")
# What German counts by ordinals: am 3. Oktober, der 2. Weltkrieg.
COUNTED = _words(
    "januar jänner februar feber märz april mai juni juli august september oktober november dezember jahrhundert",
    "jahrhunderts jahrhunderte jahrtausend weltkrieg weltkriegs weltkrieges klasse stock stocks etage platz mal kapitel",
    "auflage geburtstag tag jahr woche monat bundesliga lektion semester runde halbzeit liga teil grades fc jahrestag",
    "hochzeitstag stunde reihe")
# What stands before ordinals in German. "I am 5." is English.
DETERMINERS = _words(
    "der die das dem den des im zum zur vom beim am mein meine meinem meinen dein deine deinem deinen sein seine seinem",
    "seinen ihr ihre ihrem ihren unser unsere unserem unseren jeder jede jedes jeden jedem")
# What follows a quotation within the same sentence: "Why?" Tom asked.
SAYING = _words(
    "said says asked asks replied answered cried shouted yelled whispered exclaimed inquired added screamed muttered",
    "wondered demanded responded repeated continued called",
    "sagte fragte rief antwortete meinte schrie flüsterte",
    "dit demanda répondit cria murmura",
    "dijo preguntó respondió gritó",
    "řekl řekla zeptal zeptala odpověděl odpověděla")
