"""The words that generated room codes are made of.

May import: nothing. 1,024 common English words of four to six letters. No two begin with the same
four letters, and no two differ by one typing slip (a letter replaced, added, left out, or swapped
with its neighbour), so that a slip never turns one code into another. The order is part of the
code format: do not edit the list.
"""

_TEXT = """
able acid acorn actor adapt admit adult advice afford after again agent agree aisle alarm album
alert alien alive alley allow almond alone alpha also always amber amount amuse anchor angle
animal annual answer antler anvil apart apple april apron arch arena argue army around arrow
artist aside aspect atlas atom attic august aunt author autumn avenue avoid awake award awning
axis azure baby bacon badge bagel baker bamboo banana bank barrel basket bath beam beaver become
beef begin behave being bell bench berry best beyond binary bird bison black blade blend bless
blink bloom blue blunt board boat body bonus book borrow boss bottle bowl brain brave bread
brick brief bright bronze brown brush bubble bucket budget build bulb bundle bunny bureau burger
burst butter buyer buzz cabin cactus cake calm camel canal candle canoe canvas canyon carbon
cargo carpet carry cart castle casual catch cause cedar celery cellar cement cereal chalk change
chase cheese cherry chess chief child chin choice chord circle city civil claim clap clean
clever client cliff clinic clock club coach coast cobalt cocoa code coffee cold column comet
common copper coral corner cosmic cotton count cousin coyote crab cradle crane crater cream
credit creek crew crisp crop cross crowd cruise cube cuckoo curve custom cycle daisy damp dance
daring dash data dawn debate decade deck deer define degree delay delta demand denim depart
depth desert design detail device devote dial diary diesel diet digit direct divide dizzy doctor
dodge dollar domain donkey door double dough dove dozen dragon drama draw dress drift drink
drive drum dune dusk duty dwell eager eagle early earth easel easy echo edge edit effort either
elbow elder elite else empty enable enamel energy engine enjoy enough enter entire entry epic
equal erase errand escape essay estate every evolve exact exam excite exhale exist exotic expand
extra fabric face faint fair falcon fall family fancy farm father feast fellow fence fern fiber
fiddle field fifty figure film filter final finger finish fire first fiscal fish flag flame
fleet flight float floor flower fluid flute focus foil folder foot force forest fork formal
forum fossil foster found fresh friend fringe frog front fruit fuel future gadget galaxy garage
garden garlic gate gauge gear gecko genius gentle giant gift give glad glance glass glide globe
glory glow goal good goose gorge gown grace grand gravel great green grid group grove guard
guess guitar gulf gust habit half hammer hand happy harp hasty have hawk hazel head health heart
heavy height hello helmet help herb hidden high hill hint hippo hobby hockey hollow home honey
hornet host hotel hour house hover huge human humble hunter hurry husky hybrid icon idea idle
igloo image immune impact inch income index indoor infant inform inlet inner input insect inside
intact invest invite iris island issue item ivory jacket jaguar jazz jeans jelly jewel jigsaw
jogger join joke judge juice july jumbo jump jungle junior karate keen kettle kick kind kiosk
kite kitten kiwi knee knife knock know koala label ladder lagoon laptop large laser laugh lava
lazy leader leaf learn left legend lemon length lesson letter level like lilac lily limb linen
lion liquid list little llama loan local logic long loop lotus loud lounge lucky lumber lunar
lunch luxury lynx lyric magic magnet main major mammal manage mango maple marble margin marine
market mass master matrix maze meadow medal media melody member memory menu mercy merge merit
method might milk mimic minor minute mirror mobile model moment monday month mosaic mother
motion motor movie much muffin mule muscle museum music mutual myself myth name napkin nation
nature navy nectar needle neon nephew nerve never news next nice nickel nimble noble nomad
noodle north nose notice novel nurse nutmeg nylon oasis object oblige obtain ocean offer office
often omega onion online only opal open opera option orbit order organ orient origin otter ounce
output owner oxygen oyster paddle page palace panda panel paper parade parent park parrot party
pasta patrol peace peanut pebble pencil people pepper permit person petal phone photo phrase
piano picnic piece pigeon pillow pink pipe pirate pitch pizza planet plate play plaza please
pledge plenty plot plug pocket poem point polar pond pool poppy port postal potato powder praise
prefer pretty price prism profit proper proud public pull pulse pupil purple push puzzle queen
quest quick quiet quiz quote rabbit radar radio raft rail raisin rally ranch random range rapid
rare raven razor reach ready real reason recall record reduce reform region relax relief remain
remind remote render renew rent repair report rescue resist return reveal reward rhythm ribbon
rich ridge rigid ring ripple risk ritual rival river road robin robot rodeo roof rope rotate
route royal rubber ruby rudder runway rural rustic safari salad salon salt salute sample satin
saturn sauce scale scarf scene school scout scrap script scrub seat second secret select senior
sense sequel series seven shadow shaft share shed shelf shield shine ship shoe short should
shovel shower shrimp signal silent silver since siren sister sitcom sixty size skate sketch
skill skin skirt sleep slice slim slogan slope small smart smile smoke smooth snack snail soap
soccer social sock soda soft solid solve sonic soul south space speak speed sphere spider spike
spirit split sponge spoon spring sprout spruce square stable staff stage stairs stamp stand star
steam steel step stereo stick stone stool story street strong sturdy style submit subway sugar
suit summer super supply survey swan swarm sweet swift swing symbol syrup system tackle tailor
talent target task taste taxi temple tenant tennis term thank theory thick thing thirty thorn
thrive thumb ticket tiger timber time tiny title today token tomato tooth topic torch total
tower track trade tree trend trial tribe trip trophy trust truth tulip tuna tunnel turkey turtle
tuxedo twelve twenty twice twin twist type uncle under unfold unique unit unlock until update
uphill upper upset urban urge useful usual valid value vast vault verse video view visit vital
vivid voice vote wagon waist walk want water whale wheat wheel where white wide width wild wolf
word wrap yacht yard yoga young zebra zero zinc zone zoom
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
